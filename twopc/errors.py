"""One tree of errors. What a caller may do next is on the class, not in the message.

Four answers must never be confused (the mistake behind most lost or doubled records):

========================  ==========================================================================
it failed, try again      :class:`RetriableError`: nothing of it is visible, nothing is decided
it failed, do not         :class:`FatalError`: nothing of it is visible, the cause must be mended first
it may have happened      :class:`InDoubtError`: an outcome that cannot be proven either way
it is decided, not done   :class:`CommitBlockedError`: will be applied, by a restart, once the cause is gone
========================  ==========================================================================
"""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

if TYPE_CHECKING:
    from collections.abc import Sequence


class TwoPhaseCommitError(Exception):
    """Base of every error that this project raises on purpose.

    Attributes:
        retriable: True when doing the same again, unchanged, may succeed.
    """

    retriable: ClassVar[bool] = False


class RetriableError(TwoPhaseCommitError):
    """The attempt failed before its decision; nothing of it is or will be visible. A new attempt may succeed."""

    retriable = True


class FatalError(TwoPhaseCommitError):
    """The attempt failed before its decision and would fail again; the message names the remedy."""


class ConfigurationError(FatalError):
    """A setting is missing, unknown, dangerous or owned by the protocol. The message names it and what to set."""


class SchemaError(FatalError):
    """The DataFrame's columns are not what the sink takes. The message names the column."""


class BadRecordError(FatalError):
    """A record was refused by the system it was written to (too large, unknown topic, …)."""


class PrepareTimeoutError(FatalError):
    """Pre-commit took longer than the transactions live; replaying the same batch would take as long again."""


class FencedError(FatalError):
    """Another driver has taken over this sink. This one has lost, must stop, and has done no harm."""


class RefusedStartError(FatalError):
    """The checkpoint and the decision log do not belong together; going on would lose or double records.

    Attributes:
        case: the name of the recovery case (see ``twopc.recovery``), for programs that react to it.
    """

    def __init__(self, message: str, *, case: str = "") -> None:
        super().__init__(message)
        self.case = case


class DecisionLogDamagedError(FatalError):
    """The decision log lost or corrupted records. It is never read as an empty one."""


class InDoubtError(TwoPhaseCommitError):
    """Some outcome is unknown or cannot be completed, so nothing more is written.

    Attributes:
        committed: names of the transactions that are visible.
        lost: names of the transactions that are proven absent.
        unknown: names of the transactions of which neither could be proven.
    """

    def __init__(
        self,
        message: str,
        *,
        committed: Sequence[str] = (),
        lost: Sequence[str] = (),
        unknown: Sequence[str] = (),
    ) -> None:
        named = [
            f"{label}: {', '.join(names)}"
            for label, names in (("committed", committed), ("lost", lost), ("unknown", unknown))
            if names
        ]
        super().__init__("; ".join([message, *named]))
        self.committed = tuple(committed)
        self.lost = tuple(lost)
        self.unknown = tuple(unknown)


class DecisionInDoubtError(InDoubtError):
    """The decision's own commit was not answered. A restart reads what became of it; this run must not decide again."""


class CommitBlockedError(TwoPhaseCommitError):
    """The batch is decided but its commit cannot be completed now. Restart when the cause is gone: it is never dropped.

    Attributes:
        transactions: names of the transactions that are decided and not yet proven.
    """

    def __init__(self, message: str, *, transactions: Sequence[str] = ()) -> None:
        super().__init__(f"{message}; not yet proven: {', '.join(transactions)}" if transactions else message)
        self.transactions = tuple(transactions)
