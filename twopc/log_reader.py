"""Read a decision log when a query starts."""

from __future__ import annotations

from typing import TYPE_CHECKING

from twopc.errors import DecisionLogDamagedError
from twopc.log_view import LogView, fold
from twopc.refusals import damaged
from twopc.sealed import OtherVersionError

if TYPE_CHECKING:
    from collections.abc import Callable

    from twopc.decision_log import DecisionLog
    from twopc.records import LogContents


def view_of(log: DecisionLog, read: Callable[[], LogContents]) -> LogView:
    """Read a log, and reduce it to a view. If the log is too damaged to read, raise the same error as for other damage.

    Raises:
        OtherVersionError: the log is intact, but another version of the toolkit wrote it.
        DecisionLogDamagedError: the log is damaged.
    """
    try:
        return fold(read())
    except OtherVersionError as error:
        raise OtherVersionError(f"decision log {log.name}: {error}") from error
    except DecisionLogDamagedError as error:
        raise damaged(LogView(damage=str(error)), log.name) from error
