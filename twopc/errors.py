"""The error classes. An error's class, not its message, tells callers what to do next.

Most cases of lost or duplicated records come from confusing these four outcomes:

========================  ==========================================================================
it failed, retry          :class:`RetriableError`: nothing is visible, nothing is decided
it failed, do not retry   :class:`FatalError`: nothing is visible; fix the cause first
it may have happened      :class:`InDoubtError`: neither success nor failure can be proven
it is decided, not done   :class:`CommitBlockedError`: fix the cause and restart; the restart completes it
========================  ==========================================================================
"""

from __future__ import annotations

import traceback
from typing import TYPE_CHECKING, ClassVar

if TYPE_CHECKING:
    from collections.abc import Sequence

    from twopc.progress import Checkpoint
    from twopc.records import TaskReport


class TwoPhaseCommitError(Exception):
    """The base class for every error that this project raises on purpose.

    Attributes:
        retriable: whether the same call, retried unchanged, may succeed.
        checkpoint: the record of the checkpoint that failed with this error, once that checkpoint has ended.
    """

    retriable: ClassVar[bool] = False
    checkpoint: Checkpoint | None = None


class RetriableError(TwoPhaseCommitError):
    """The attempt failed before its decision. None of its rows are or will be visible. A new attempt may succeed."""

    retriable = True


class UnavailableError(RetriableError):
    """A server that the batch needs did not respond in time. No part of the attempt is or will be visible.

    A sink's step may also raise this error. During a commit, no caller sees this error, because the committer reports
    UNKNOWN instead.
    """


class FatalError(TwoPhaseCommitError):
    """The attempt failed before its decision and would fail again. The message says what to fix."""


class ConfigurationError(FatalError):
    """A setting is missing, unknown, dangerous or reserved. The message names the setting and says what to set instead."""


class SchemaError(FatalError):
    """The DataFrame's columns do not fit the sink. The message identifies the column."""


class BadRecordError(FatalError):
    """The target system rejected a record, for example because the record is too large or its topic is unknown."""


class CheckpointExpiredError(FatalError):
    """Pre-commit took longer than its time limit or the transaction timeout. A replay would take just as long.

    Attributes:
        late: the votes that arrived after the time limit. Late votes do not count, and their transactions are aborted.
    """

    def __init__(self, message: str, *, late: Sequence[TaskReport] = ()) -> None:
        super().__init__(message)
        self.late = tuple(late)


class FencedError(FatalError):
    """A newer driver owns this sink. This driver has not changed any data, and must stop."""


class RefusedStartError(FatalError):
    """The checkpoint and the decision log do not match. Continuing would lose or duplicate records.

    Attributes:
        case: the recovery case (see ``twopc.recovery``), for programs that handle the error.
    """

    def __init__(self, message: str, *, case: str = "") -> None:
        super().__init__(message)
        self.case = case


class RestoredError(FatalError):
    """While the driver was running, a sink's store was restored to an older state. Rows that were visible may be lost."""


class DecisionLogDamagedError(FatalError):
    """The decision log has lost or corrupted records. A damaged log is never treated as an empty one."""


class InDoubtError(TwoPhaseCommitError):
    """A decided batch cannot be completed, or its outcome is unknown. Nothing more is written.

    Attributes:
        committed: names of the transactions that are visible.
        lost: names of the transactions that are proven lost.
        unknown: names of the transactions whose outcome is unknown.
    """

    def __init__(
        self, message: str, *, committed: Sequence[str] = (), lost: Sequence[str] = (), unknown: Sequence[str] = ()
    ) -> None:
        named = {"committed": committed, "lost": lost, "unknown": unknown}
        parts = [f"{what}: {', '.join(names)}" for what, names in named.items() if names]
        super().__init__("; ".join([message, *parts]))
        self.committed = tuple(committed)
        self.lost = tuple(lost)
        self.unknown = tuple(unknown)


class DecisionInDoubtError(InDoubtError):
    """The decision may or may not have been written. This run must not decide again; a restart reads the outcome."""


class CommitBlockedError(TwoPhaseCommitError):
    """The batch is decided, but its commit cannot be completed now. A decided batch is never discarded.

    Fix the cause and restart.

    Attributes:
        transactions: names of the transactions that are decided but not yet proven.
    """

    def __init__(self, message: str, *, transactions: Sequence[str] = ()) -> None:
        super().__init__(f"{message}; not yet proven: {', '.join(transactions)}" if transactions else message)
        self.transactions = tuple(transactions)


def public_class(error: TwoPhaseCommitError) -> type[TwoPhaseCommitError]:
    """Return the error's class, or the nearest base class in this module if a sink defines the error's class.

    A worker sends the driver only the name of the class. The driver looks up that name in this module.
    """
    return next(one for one in type(error).__mro__ if one.__module__ == __name__)


def release(error: BaseException) -> None:
    """Release the variables that a handled error keeps alive. The error's tracebacks can still be shown.

    A traceback keeps the local variables of its functions and of their callers alive. If one of these variables refers to the
    error itself, only the garbage collector can release any of them. Under Spark Connect, the batch is one of these variables,
    and the garbage collector must not release a batch (``twopc.integration.connect.worker``).
    """
    found: list[BaseException | None] = [error]
    for one in found:  # the loop body extends the list
        if one is not None:
            traceback.clear_frames(one.__traceback__)
            found += [next_one for next_one in (one.__cause__, one.__context__) if next_one not in found]


def missing_extra(what: str, extra: str, error: ModuleNotFoundError) -> ModuleNotFoundError:
    """Build the error to raise when ``what`` cannot be imported because a package from ``extra`` is missing."""
    return ModuleNotFoundError(
        f"{what} needs the {error.name!r} package, which is not installed. Run: pip install 'spark-twopc[{extra}]'",
        name=error.name,
    )
