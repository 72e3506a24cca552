"""What Spark Connect shows just before a query starts."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from twopc.integration.connect.one_shuffle import NOT_KNOWN, Checksums
from twopc.integration.spark.state_reports import STATE_FORMAT

if TYPE_CHECKING:
    from collections.abc import Mapping


@dataclass(frozen=True)
class Start:
    """The state of the session just before the query started. Without arguments: the state is not known.

    Attributes:
        checksums: Spark's checksum settings.
        views: the temporary views; see :func:`twopc.integration.connect.frames.views_of`.
        state_format: the format of the state's files; see :func:`state_format`.
    """

    checksums: Checksums = NOT_KNOWN
    views: Mapping[str, str] = field(default_factory=dict)
    state_format: int = 1

    @classmethod
    def of(cls, session: Any) -> Start:
        """Ask the server."""
        from twopc.integration.connect.frames import views_of  # noqa: PLC0415 - needs the classic part of PySpark

        return cls(Checksums.of(session), views_of(session), state_format(session))


def state_format(session: Any) -> int:
    """Return the format in which a query that starts now writes its state's files; see :data:`STATE_FORMAT`."""
    return int(session.conf.get(STATE_FORMAT, "1"))
