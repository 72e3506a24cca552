"""Confirmation, the last check before the decision: every transaction is whole, open, and lives long enough (rule 3)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from sinks.kafka.reports import NONE
from twopc.errors import PrepareTimeoutError, RetriableError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from sinks.kafka.handle import KafkaHandle
    from sinks.kafka.reports import Description
    from sinks.kafka.settings import KafkaSettings
    from sinks.kafka.transactions import TransactionClient


def confirm(client: TransactionClient, settings: KafkaSettings, handles: Sequence[KafkaHandle], age_ms: float) -> None:
    """Check what the tasks voted with.

    Raises:
        PrepareTimeoutError: too little of the transactions' time is left.
        RetriableError: a transaction is not whole or not open.
    """
    lives_ms = settings.transaction_timeout_ms
    if lives_ms - age_ms < settings.reserve_ms:
        raise PrepareTimeoutError(
            f"sink {settings.sink!r}: preparing took {age_ms:.0f} ms, its transactions live {lives_ms} ms, so the batch was not "
            "decided; no data is lost. Make batches smaller (maxOffsetsPerTrigger), or raise kafka.transaction.timeout.ms "
            "(and the brokers' transaction.max.timeout.ms)"
        )
    descriptions = client.describe([handle.transactional_id for handle in handles])
    for handle in handles:
        reason = why_not(handle, descriptions[handle.transactional_id], settings.ledger)
        if reason:
            raise RetriableError(f"{handle.transaction} cannot be decided: {reason}")


def why_not(handle: KafkaHandle, found: Description, ledger: str) -> str | None:
    """Why a handle cannot be decided; None when it can."""
    if found.error != NONE:
        return f"its coordinator reports {found.error}"
    if found.state != "Ongoing":
        return f"it is {found.state}, not Ongoing: it timed out, or another process ended it"
    if (found.producer_id, found.producer_epoch) != (handle.producer_id, handle.producer_epoch):
        return (
            f"the coordinator has producer {found.producer_id} epoch {found.producer_epoch}, the writer had "
            f"{handle.producer_id} epoch {handle.producer_epoch}"
        )
    missing = (handle.topic_partitions() | {f"{ledger}:{handle.marker_partition}"}) - found.partitions
    if missing:
        return (
            f"the coordinator's transaction lacks {', '.join(sorted(missing))}: it was ended and begun again meanwhile"
        )
    return None
