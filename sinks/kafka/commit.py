"""Commit: end decided transactions from the driver, and wait until readers see them (rule 4)."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from sinks.kafka.reports import CONCURRENT
from sinks.kafka.retry import NOT_FINAL, until_final
from twopc.crash_points import crash_point, is_armed

if TYPE_CHECKING:
    from collections.abc import Sequence

    from sinks.kafka.handle import KafkaHandle
    from sinks.kafka.reports import Description
    from sinks.kafka.transactions import TransactionClient

logger = logging.getLogger(__name__)


def end_all(client: TransactionClient, handles: Sequence[KafkaHandle], *, timeout_ms: float) -> dict[KafkaHandle, str]:
    """Commit transactions, all in flight together.

    Returns:
        by handle, NONE, which proves its commit, or the error's name, which proves nothing.
    """
    by_id = {handle.transactional_id: handle for handle in handles}

    def end(ids: Sequence[str]) -> dict[str, str]:
        return client.end([by_id[tid].identity for tid in ids])

    if is_armed("driver.committing"):  # a test stops after the first
        until_final([handles[0].transactional_id], end, timeout_ms=timeout_ms)
        crash_point("driver.committing")
    reports = until_final(by_id, end, timeout_ms=timeout_ms)
    return {by_id[tid]: report for tid, report in reports.items()}


def await_visible(client: TransactionClient, committed: Sequence[KafkaHandle], *, timeout_ms: float) -> None:
    """Wait until readers see committed transactions: the coordinator reports NONE before the partitions have the commit.

    Nothing is in doubt here. A partition without a leader shows its rows when it has one again.
    """
    by_id = {handle.transactional_id: handle for handle in committed}

    def look(ids: Sequence[str]) -> dict[str, str]:
        return {tid: _visibility(by_id[tid], found) for tid, found in client.describe(ids).items()}

    reports = until_final(by_id, look, timeout_ms=timeout_ms)
    late = [by_id[tid].transaction for tid, report in reports.items() if report in NOT_FINAL]
    if late:
        logger.warning("committed, but not readable yet in every partition: %s", ", ".join(late))


def _visibility(handle: KafkaHandle, found: Description) -> str:
    """CONCURRENT while the commit has not reached every partition of the transaction."""
    ours = (found.producer_id, found.producer_epoch) == (handle.producer_id, handle.producer_epoch)
    return CONCURRENT if ours and found.state == "PrepareCommit" else found.error
