"""What a decision records of the time before its tasks: where its markers begin, and the output's partition count.

Nobody waits for the brokers: an attempt uses what was requested when the batch before was over. Last stable offsets only grow, so
its markers are at or above them. A leader that is behind may answer with less than is known already: the higher one counts, since
what is below an older start may be deleted.
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
    """The scan starts of one driver's attempts.

    Args:
        log: of the sink.
        output: the topic that gets the rows, if it is always the same one.
        timeout_ms: how long to wait for an answer, where nothing was requested ahead.
    """

    def __init__(self, log: KafkaDecisionLog, output: str | None, *, timeout_ms: float) -> None:
        self._log = log
        self._output = output
        self._timeout_ms = timeout_ms
        self._partitions: list[int] = []
        self._ahead: Requested = {}
        self._known: dict[int, int] = {}

    def at_least(self, starts: Mapping[int, int]) -> None:
        """Take note of lower bounds, by partition: the markers below them are about to be deleted."""
        self._known |= {partition: max(start, self._known.get(partition, 0)) for partition, start in starts.items()}

    def request(self) -> None:
        """Request those of the next attempt: a batch is over, and its transactions have ended. Raises nothing."""
        if self._partitions:
            log, latest = self._log, OffsetSpec.latest()
            self._ahead = request_offsets(
                log.admin, log.name, self._partitions, latest, committed=True, timeout_ms=self._timeout_ms
            )

    def take(self) -> dict[str, Any]:
        """For an attempt that begins now.

        Raises:
            RetriableError, ConfigurationError: nothing was requested ahead, or not answered, and there is no answer now.
        """
        self.at_least(self._answer() or self._ask())
        self._ahead = {}
        return {"markers": {str(partition): start for partition, start in self._known.items()}, "outputs": self.outputs}

    @cached_property
    def outputs(self) -> dict[str, int]:
        """The output's partition count when this driver first asked: a later change is seen by the next one."""
        if self._output is None:
            return {}
        try:
            found = describe(self._log.admin, self._output, timeout_ms=self._timeout_ms)
        except TwoPhaseCommitError:
            found = None  # the writers report what is wrong with the topic, at their first record
        return {} if found is None else {self._output: len(found.partitions)}

    def _ask(self) -> dict[int, int]:
        # Looked up once: a partition that is added later holds nothing older, and is searched from its first offset on.
        log, latest = self._log, OffsetSpec.latest()
        self._partitions = self._partitions or log.topic.marker_partitions()
        # The last stable offsets: never above the ends, and one request returns them all.
        return offsets(log.admin, log.name, self._partitions, latest, committed=True, timeout_ms=self._timeout_ms)

    def _answer(self) -> dict[int, int]:
        """To what was requested ahead; empty if there is none: then the leaders have to be looked for."""
        try:
            return answered(self._ahead, self._log.name, timeout_ms=self._timeout_ms)
        except TwoPhaseCommitError:
            return {}
