"""A sink's control record, which identifies the sink's owner and newest decision.

The record is one value in the sink's store. The value changes only by compare-and-set, so if two drivers try to change
it at the same time, one of them fails. This module computes the next record;
:class:`twopc.control_committer.ControlCommitter` stores it.
"""

from __future__ import annotations

import time
import uuid
from typing import TYPE_CHECKING

import msgspec
from msgspec.structs import replace

from twopc.attempt import Owner
from twopc.errors import ConfigurationError, FencedError, RestoredError

if TYPE_CHECKING:
    from twopc.attempt import Claim


class Control(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The control record. All fields are empty until the first driver acquires the sink.

    Attributes:
        id: the sink's id in this store. A copy of the store's data has the same id.
        run: the UUID of the owner's run.
        query_id: the id of the owner's query.
        driver_epoch: how many times the sink has been acquired.
        version: the highest version reserved so far. A version is an integer that grows with every attempt at a batch.
        decided: the version of the newest decision of the owner's query.
        former_decided: the version of the newest decision that was made before the owner's query last took over the sink. The
            owner's query may have made that decision itself, because a query may take the sink back if its successor has
            decided nothing.
        completed: the version of the newest decision that the owner's query has completed for a query that it replaced. Only
            the replaced query's log contains this decision.
        proven: the version of the newest decision that was proven complete in this store. A take-over does not reset it.
        revision: how many times the record has been written. Because of this number, no value is ever stored twice.
    """

    id: str = ""
    run: str = ""
    query_id: str = ""
    driver_epoch: int = 0
    version: int = 0
    decided: int = 0
    former_decided: int = 0
    completed: int = 0
    proven: int = 0
    revision: int = 0

    @property
    def owner(self) -> Owner:
        """The driver that most recently acquired the sink."""
        return Owner(self.query_id or None, self.driver_epoch)


def decode(stored: bytes | None) -> Control:
    """Decode the stored record; return an empty record if nothing is stored.

    Raises:
        ConfigurationError: a different value is stored in place of the record.
    """
    if stored is None:
        return Control()
    try:
        return msgspec.json.decode(stored, type=Control)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise ConfigurationError(
            f"a different value is stored in place of the sink's control record ({error}): {stored[:100]!r}. Nothing was "
            "written. If a newer version of the toolkit has written the record, use that version. Otherwise, restore the record "
            "from a backup. If both are impossible, choose a new sink name. If this checkpoint has already been used with this "
            "sink, it requires the old name. In this case, you also need a new checkpoint: docs/operations.md#new-checkpoint"
        ) from error


def encode(record: Control) -> bytes:
    """Encode the record."""
    return msgspec.json.encode(record)


def acquired(record: Control, claim: Claim, *, seen: Owner, sink: str) -> Control:
    """Return a record in which the claimant owns the sink.

    If the claimant already owns it, return ``record`` unchanged.

    Args:
        record: the current record.
        claim: the claimant.
        seen: the owner that the claimant wants to fence.
        sink: the sink name, for the message.

    Raises:
        FencedError: another driver has since acquired the sink.
    """
    if record.run == claim.run:
        return record
    if record.driver_epoch != seen.driver_epoch:
        raise fenced(sink)
    taken = replace(record, id=record.id or uuid.uuid4().hex, run=claim.run, driver_epoch=record.driver_epoch + 1)
    if record.query_id == claim.query_id:
        return taken
    former = decided_by_others(record, claim.query_id)
    return replace(taken, query_id=claim.query_id, decided=0, former_decided=former, completed=0)


def decided_by_others(record: Control, query_id: str) -> int:
    """Return the version of the newest decision before the query acquired the sink from another query.

    If the query does not own the sink, every decision counts.
    """
    return record.former_decided if record.query_id == query_id else max(record.former_decided, record.decided)


def reserved(record: Control, *, above: int) -> Control:
    """Return the record with a new version, which is higher than ``above`` and every earlier version.

    The version is at least the current Unix time in milliseconds, because a store may use the version as a cell
    timestamp.
    """
    return replace(record, version=max(now_ms(), record.version + 1, above + 1))


def now_ms() -> int:
    """Return this host's Unix time in milliseconds, which is the lowest possible new version."""
    return time.time_ns() // 1_000_000


def decided(record: Control, version: int, *, is_own: bool = True) -> Control:
    """Return the record with ``version`` as the owner's newest decision. This version never decreases.

    If ``is_own`` is false, the owner's query has completed the decision on behalf of a query that it replaced.
    """
    completed = record.completed if is_own else max(record.completed, version)
    return replace(record, decided=max(record.decided, version), completed=completed)


def proven(record: Control, version: int) -> Control:
    """Return the record, which now says that the decision with this version is complete in the store."""
    return replace(record, proven=max(record.proven, version))


def renewed(record: Control) -> Control:
    """Return the record with a new revision, and otherwise unchanged."""
    return replace(record, revision=record.revision + 1)


def fenced(sink: str) -> FencedError:
    """Build the error for a driver that no longer owns the sink."""
    return FencedError(
        f"sink {sink!r}: another driver has acquired the sink and fenced this driver. No data is at risk. Stop this run"
    )


def require_revision(record: Control, known: int, *, sink: str) -> None:
    """Check that the store has not lost the revision ``known``, which the running driver has seen there.

    Raises:
        RestoredError: the store was restored to an older state.
    """
    if record.revision < known:
        raise restored(
            sink,
            f"The sink's control record is at revision {record.revision}, but this driver has already seen revision {known}",
        )


def restored(sink: str, missing: str) -> RestoredError:
    """Build the error for a store that has lost a write that the running driver has seen. ``missing`` is a sentence."""
    return RestoredError(
        f"sink {sink!r}: its store was restored to an older state while this driver was running. {missing}. A backup was "
        "restored, or a failover lost acknowledged writes, so rows that were visible may be lost. This driver will "
        "not write to this store again. If the newer state still exists, restore it. Then restart the query. At startup, the "
        "query compares the store with the decisions. It then writes the last batch again, or reports which batches are "
        "lost and what to do"
    )
