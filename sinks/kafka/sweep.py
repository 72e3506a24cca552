"""The sweep: fence what nobody has decided (rule 7).

By InitProducerId rather than EndTxn, so that the writer is stopped, too, wherever it still runs.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from sinks.kafka import transactional_id
from sinks.kafka.handle import ProducerIdentity
from sinks.kafka.reports import FENCED, NONE
from sinks.kafka.retry import until_final
from twopc.crash_points import crash_point

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

    from sinks.kafka.handle import KafkaHandle
    from sinks.kafka.settings import KafkaSettings
    from sinks.kafka.transactions import TransactionClient

logger = logging.getLogger(__name__)


def sweep(client: TransactionClient, settings: KafkaSettings, *, spared: Collection[KafkaHandle], below: int) -> None:
    """Fence every open transaction of the sink's tasks, except the spared. An incomplete sweep is logged.

    Args:
        client: of the sink's cluster.
        settings: the sink's.
        spared: transactions that are decided.
        below: only those of driver epochs below it.
    """
    listing = client.list_open(transactional_id.prefix_of(settings.sink))
    candidates = [
        tid
        for tid in listing.transactional_ids
        if (epoch := transactional_id.driver_epoch_of(tid)) is not None and epoch < below
    ]
    # Fenced, and spared, at the epoch that it has now: the worker may use an id again before the sweep reaches it, and
    # an id whose decided transaction is proven may serve a later batch, which nobody has decided.
    opened = [
        ProducerIdentity(tid, found.producer_id, found.producer_epoch)
        for tid, found in client.describe(candidates).items()
        if found.error == NONE
    ]
    kept = {handle.identity for handle in spared}
    orphans = [identity for identity in opened if identity not in kept]
    if orphans:
        named = ", ".join(orphan.transactional_id for orphan in orphans)
        logger.warning("sweeping transactions that nobody has decided: %s", named)
        crash_point("driver.sweeping")
    unfenced = fence(client, orphans, timeout_ms=settings.timeout_ms)
    if unfenced or len(opened) < len(candidates) or not listing.complete:
        logger.warning("the sweep of sink %r is incomplete; the next batch repeats it", settings.sink)


def fence(client: TransactionClient, identities: Sequence[ProducerIdentity], *, timeout_ms: float) -> list[str]:
    """Abort the transactions and stop their writers. Returns the ids for which that is not proven."""
    by_id = {identity.transactional_id: identity for identity in identities}
    reports = until_final(by_id, lambda ids: client.fence([by_id[tid] for tid in ids]), timeout_ms=timeout_ms)
    done = FENCED | {NONE}
    return [tid for tid, report in reports.items() if report not in done]
