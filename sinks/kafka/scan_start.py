"""Before an attempt's tasks start, record the output's partition count and where to begin the search for markers.

To avoid waiting for the brokers, an attempt uses the offsets that were requested at the end of the previous batch. Last
stable offsets only grow, so the attempt's markers are at or above these offsets. A lagging leader may return a lower offset
than an earlier response did. In that case, this module uses the higher offset, because the records between the two offsets may
be deleted.
"""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING, Any

from confluent_kafka.admin import OffsetSpec

from twopc.errors import TwoPhaseCommitError
from twopc.sinks.kafka.ledger_topic import describe
from twopc.sinks.kafka.reader import answered, offsets, request_offsets

if TYPE_CHECKING:
    from collections.abc import Mapping

    from twopc.sinks.kafka.decision_log import KafkaDecisionLog
    from twopc.sinks.kafka.reader import Requested


class ScanStart:
    """Finds the offsets where the scans for one driver's attempts start.

    Args:
        log: the sink's decision log.
        output: the rows' topic, if all rows go to the same topic.
        timeout_ms: how long to wait for a response if nothing was requested in advance.
    """

    def __init__(self, log: KafkaDecisionLog, output: str | None, *, timeout_ms: float) -> None:
        self._log = log
        self._output = output
        self._timeout_ms = timeout_ms
        self._partitions: list[int] = []
        self._ahead: Requested = {}
        self._known: dict[int, int] = {}

    def at_least(self, starts: Mapping[int, int]) -> None:
        """Raise each partition's start to the given offset, because the markers below that offset will be deleted."""
        self._known |= {partition: max(start, self._known.get(partition, 0)) for partition, start in starts.items()}

    def request(self) -> None:
        """Request the offsets for the next attempt, after a batch and its transactions have ended. Raises nothing."""
        if self._partitions:
            log, latest = self._log, OffsetSpec.latest()
            self._ahead = request_offsets(
                log.admin, log.name, self._partitions, latest, committed=True, timeout_ms=self._timeout_ms
            )

    def take(self) -> dict[str, Any]:
        """Return the scan start for an attempt that begins now.

        Raises:
            RetriableError, ConfigurationError: neither an earlier nor a new request received a response.
        """
        self.at_least(self._answer() or self._ask())
        self._ahead = {}
        return {"markers": {str(partition): start for partition, start in self._known.items()}, "outputs": self.outputs}

    @cached_property
    def outputs(self) -> dict[str, int]:
        """The output's partition count, which each driver reads once. A later change is visible only to the next driver."""
        if self._output is None:
            return {}
        try:
            found = describe(self._log.admin, self._output, timeout_ms=self._timeout_ms)
        except TwoPhaseCommitError:
            found = None  # the writers will report the problem with their first record
        return {} if found is None else {self._output: len(found.partitions)}

    def _ask(self) -> dict[int, int]:
        # Look up the partitions once. A partition that is added later has no older records, and is searched from its
        # first offset.
        log, latest = self._log, OffsetSpec.latest()
        self._partitions = self._partitions or log.topic.marker_partitions()
        # Use the last stable offsets, because they are never above the end offsets, and one request returns them all.
        return offsets(log.admin, log.name, self._partitions, latest, committed=True, timeout_ms=self._timeout_ms)

    def _answer(self) -> dict[int, int]:
        """Return the prefetched offsets, or {} if none arrived."""
        try:
            return answered(self._ahead, self._log.name, timeout_ms=self._timeout_ms)
        except TwoPhaseCommitError:
            return {}
