"""In the driver, confirm (rule 3), commit (rule 4), abort and sweep (rule 7) the tasks' transactions."""

from __future__ import annotations

import logging
import time
from typing import TYPE_CHECKING

from twopc.crash_points import crash_point, is_armed
from twopc.errors import CheckpointExpiredError, RetriableError
from twopc.sinks.kafka.handle import ProducerIdentity, driver_epoch_of, id_prefix
from twopc.sinks.kafka.reports import CONCURRENT, FENCED, NO_ANSWER, NONE, NOT_FINAL, described, until_final

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

    from twopc.sinks.kafka.handle import KafkaHandle
    from twopc.sinks.kafka.reports import Description
    from twopc.sinks.kafka.settings import KafkaSettings
    from twopc.sinks.kafka.transactions import TransactionClient

logger = logging.getLogger(__name__)


def confirm(client: TransactionClient, settings: KafkaSettings, handles: Sequence[KafkaHandle], age_ms: float) -> None:
    """Check the tasks' votes. Every transaction must be complete and open, and have enough time left.

    Raises:
        CheckpointExpiredError: the transactions have too little time left.
        RetriableError: a transaction is not complete or not open.
    """
    _require_time(settings, age_ms)
    began = time.monotonic()
    # All rows are already written. A coordinator that moves, or that throttles the client, must not cause the tasks to
    # write the rows again.
    ids = [handle.transactional_id for handle in handles]
    descriptions = described(client.describe, ids, timeout_ms=settings.timeout_ms)
    for handle in handles:
        found = descriptions[handle.transactional_id]
        errors = client.connection_errors() if found.error == NO_ANSWER else []
        reason = why_not(handle, found, settings.ledger, errors)
        if reason:
            raise RetriableError(f"{handle.transaction} cannot be decided: {reason}")
    _require_time(settings, age_ms + (time.monotonic() - began) * 1000)


def _require_time(settings: KafkaSettings, age_ms: float) -> None:
    lives_ms = settings.transaction_timeout_ms
    if lives_ms - age_ms < settings.reserve_ms:
        raise CheckpointExpiredError(
            f"sink {settings.name!r}: preparing the batch took {age_ms:.0f} ms, but transactions expire after {lives_ms} ms. "
            "No part of this attempt is visible or decided. To allow more time, increase kafka.transaction.timeout.ms and the "
            "brokers' transaction.max.timeout.ms"
        )


def why_not(handle: KafkaHandle, found: Description, ledger: str, errors: Sequence[str] = ()) -> str | None:
    """Say why a handle's transaction cannot be decided. Return None if the transaction can be decided.

    Args:
        handle: the handle.
        found: the coordinator's report.
        ledger: the ledger's name.
        errors: why brokers do not respond; see :meth:`TransactionClient.connection_errors`.
    """
    if found.error == NO_ANSWER:
        return "; ".join([f"its coordinator does not respond ({NO_ANSWER})", *errors])
    if found.error != NONE:
        return f"its coordinator reports {found.error}"
    if found.state != "Ongoing":
        return (
            f"the transaction's state is {found.state}, not Ongoing, because the transaction timed out or another "
            "process ended it"
        )
    if not found.is_of(handle):
        return (
            f"the coordinator reports producer {found.producer_id} with epoch {found.producer_epoch}, but the rows were "
            f"written by producer {handle.producer_id} with epoch {handle.producer_epoch}"
        )
    missing = (handle.topic_partitions() | {f"{ledger}:{handle.marker_partition}"}) - found.partitions
    if missing:
        topics = sorted({where.rpartition(":")[0] for where in missing})
        return (
            f"according to the coordinator, the transaction does not include {', '.join(sorted(missing))}. Either the "
            "transaction ended and a new one began, or the driver's principal has no permission to see these "
            f"partitions. In the second case, allow Describe on the topic {' and '.join(topics)}"
        )
    return None


def end_all(client: TransactionClient, handles: Sequence[KafkaHandle], *, timeout_ms: float) -> dict[KafkaHandle, str]:
    """Commit all transactions concurrently. The report NONE proves the commit, but an error proves nothing."""
    by_id = {handle.transactional_id: handle for handle in handles}

    def end(ids: Sequence[str]) -> dict[str, str]:
        return client.end([by_id[tid].identity for tid in ids])

    if handles and is_armed("driver.committing"):  # a test stops after the first commit
        until_final([handles[0].transactional_id], end, timeout_ms=timeout_ms)
        crash_point("driver.committing")
    reports = until_final(by_id, end, timeout_ms=timeout_ms)
    return {by_id[tid]: report for tid, report in reports.items()}


def await_visible(client: TransactionClient, committed: Sequence[KafkaHandle], *, timeout_ms: float) -> None:
    """Wait until readers see committed transactions. The coordinator reports NONE before the commit reaches the partitions.

    These transactions are not in doubt. If a partition has no leader, readers see its rows once it has a leader again.
    """
    by_id = {handle.transactional_id: handle for handle in committed}

    def look(ids: Sequence[str]) -> dict[str, str]:
        return {tid: _visibility(by_id[tid], found) for tid, found in client.describe(ids).items()}

    reports = until_final(by_id, look, timeout_ms=timeout_ms)
    late = [by_id[tid].transaction for tid, report in reports.items() if report in NOT_FINAL]
    if late:
        logger.warning("these transactions are committed, but not yet readable in every partition: %s", ", ".join(late))


def _visibility(handle: KafkaHandle, found: Description) -> str:
    """Report CONCURRENT until the commit has reached all of the transaction's partitions."""
    return CONCURRENT if found.is_of(handle) and found.state == "PrepareCommit" else found.error


def sweep(client: TransactionClient, settings: KafkaSettings, *, spared: Collection[KafkaHandle], below: int) -> int:
    """Fence every open task transaction from a driver epoch lower than ``below``, except those in ``spared``.

    Log a warning if the sweep is incomplete. Return the number of transactions that have provably ended.
    """
    listing = client.list_open(id_prefix(settings.name))
    candidates = [
        tid for tid in listing.transactional_ids if (epoch := driver_epoch_of(tid)) is not None and epoch < below
    ]
    # Fence or spare an id at its current epoch, because the worker may reuse an id before the sweep reaches it. Once an
    # id's decided transaction is proven, the id may also serve the next batch, which is not decided yet.
    opened = [
        ProducerIdentity(tid, found.producer_id, found.producer_epoch)
        for tid, found in client.describe(candidates).items()
        if found.error == NONE
    ]
    kept = {handle.identity for handle in spared}
    orphans = [identity for identity in opened if identity not in kept]
    if orphans:
        named = ", ".join(orphan.transactional_id for orphan in orphans)
        logger.warning("sweeping undecided transactions: %s", named)
        crash_point("driver.sweeping")
    unfenced = fence(client, orphans, timeout_ms=settings.timeout_ms)
    if unfenced or len(opened) < len(candidates) or not listing.complete:
        logger.warning("the sweep of sink %r is incomplete, and will be retried in the next batch", settings.name)
    return len(orphans) - len(unfenced)


def fence(client: TransactionClient, identities: Sequence[ProducerIdentity], *, timeout_ms: float) -> dict[str, str]:
    """Abort the transactions and stop their writers. Return the last report on each id without a proven abort.

    Unlike EndTxn, InitProducerId also stops a writer that is still running somewhere (rule 7).
    """
    by_id = {identity.transactional_id: identity for identity in identities}
    reports = until_final(by_id, lambda ids: client.fence([by_id[tid] for tid in ids]), timeout_ms=timeout_ms)
    done = FENCED | {NONE}
    return {tid: report for tid, report in reports.items() if report not in done}
