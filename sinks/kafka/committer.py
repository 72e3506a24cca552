"""The driver's side of a Kafka sink: acquire, confirm, commit and prove, sweep."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

from confluent_kafka import KafkaException, TopicCollection

from sinks.kafka import marker_search, transactional_id
from sinks.kafka.commit import await_visible, end_all
from sinks.kafka.confirm import confirm
from sinks.kafka.decision_log import KafkaDecisionLog
from sinks.kafka.handle import KafkaHandle
from sinks.kafka.reports import NO_ANSWER, NONE, NOT_AUTHORIZED
from sinks.kafka.retry import until_final
from sinks.kafka.sweep import fence, sweep
from sinks.kafka.transactions import TransactionClient
from twopc.committer import SinkCommitter
from twopc.errors import ConfigurationError, DecisionInDoubtError, RetriableError
from twopc.handle import Evidence

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence

    from sinks.kafka.settings import KafkaSettings
    from twopc.attempt import Claim

logger = logging.getLogger(__name__)


class KafkaCommitter(SinkCommitter[KafkaHandle]):
    """See :class:`SinkCommitter`."""

    def __init__(self, settings: KafkaSettings) -> None:
        self._settings = settings
        self._timeout_ms = settings.timeout_ms
        self._client = TransactionClient(settings.committing_config())
        self._log = KafkaDecisionLog(settings)
        self._driver_epoch = -1

    def binding(self) -> Mapping[str, str]:
        """See :class:`SinkCommitter`: the cluster and the ledger, by their ids."""
        return {
            "cluster": self._client.cluster_id,
            "ledger": self._log.name,
            "ledger_id": self._log.identity(),
        }

    def decision_log(self) -> KafkaDecisionLog:
        """See :class:`SinkCommitter`."""
        return self._log

    def inspect(self) -> None:
        """See :class:`SinkCommitter`: the ledger's settings (rule 14), and the right that the sweep needs (rule 7)."""
        self._log.require_safe()
        sink = self._settings.sink
        probe = transactional_id.of_task(sink, 0, "preflight", 0)
        report = until_final([probe], self._describe_errors, timeout_ms=self._timeout_ms)[probe]
        if report == NO_ANSWER:
            raise RetriableError(
                f"no transaction coordinator responds at {self._settings.bootstrap_servers} within {self._timeout_ms} ms"
            )
        if report == NOT_AUTHORIZED:
            raise ConfigurationError(
                f"sink {sink!r} may not describe its transactional ids, so it could not find the transactions that a failed "
                f"driver left open. Set ACLs that allow Describe and Write on transactional ids with the prefix '{sink}.'"
            )

    def _describe_errors(self, transactional_ids: Sequence[str]) -> dict[str, str]:
        return {tid: found.error for tid, found in self._client.describe(transactional_ids).items()}

    def acquire(self, claim: Claim) -> int:
        """See :class:`SinkCommitter`."""
        self._driver_epoch = self._log.acquire(claim)
        return self._driver_epoch

    def begin_attempt(self) -> dict[str, Any]:
        """See :class:`SinkCommitter`: where the markers will begin, and the output's partition count."""
        return {"markers": marker_search.ends(self._log, timeout_ms=self._timeout_ms), "outputs": self._outputs()}

    def confirm(self, handles: Sequence[KafkaHandle], age_ms: float) -> None:
        """See :class:`SinkCommitter`: rule 3."""
        if handles:
            confirm(self._client, self._settings, handles, age_ms)

    def commit(self, handles: Sequence[KafkaHandle], scan_start: Mapping[str, Any]) -> dict[KafkaHandle, Evidence]:
        """See :class:`SinkCommitter`: NONE proves a commit; after any other report the markers decide (rule 4)."""
        proven: dict[KafkaHandle, Evidence] = {}
        reports = end_all(self._client, handles, timeout_ms=self._timeout_ms)
        for handle, report in reports.items():
            if report == NONE:
                proven[handle] = Evidence.COMMITTED
        unclear = [handle for handle in handles if handle not in proven]
        if unclear:
            named = ", ".join(f"{handle.transaction}: {reports[handle]}" for handle in unclear)
            logger.warning("the commit did not prove these transactions; searching for their markers: %s", named)
            proven.update(self.evidence(unclear, scan_start))
        committed = [handle for handle, found in proven.items() if found is Evidence.COMMITTED]
        await_visible(self._client, committed, timeout_ms=self._timeout_ms)
        return proven

    def abort(self, handles: Sequence[KafkaHandle]) -> None:
        """See :class:`SinkCommitter`: by fencing, so that the writer is stopped wherever it is (rule 7)."""
        fence(self._client, [handle.identity for handle in handles], timeout_ms=self._timeout_ms)

    def evidence(self, handles: Sequence[KafkaHandle], scan_start: Mapping[str, Any]) -> dict[KafkaHandle, Evidence]:
        """See :class:`SinkCommitter`: by the markers alone."""
        wanted: dict[int, list[str]] = {}
        for handle in handles:
            wanted.setdefault(handle.marker_partition, []).append(handle.uuid)
        found: Mapping[str, Evidence] = {}
        for _ in range(2):
            # Sweep first: a dead driver's orphan holds back the last stable offset until it times out. Only earlier
            # driver epochs: this driver's own transactions may still be decided.
            sweep(self._client, self._settings, spared=handles, below=self._driver_epoch)
            found = self._search(wanted, scan_start)
            if Evidence.UNKNOWN not in found.values():
                break
        return {handle: found[handle.uuid] for handle in handles}

    def _search(self, wanted: Mapping[int, Sequence[str]], scan_start: Mapping[str, Any]) -> Mapping[str, Evidence]:
        starts = scan_start.get("markers", {})
        try:
            return marker_search.search(self._log, wanted, starts, timeout_ms=self._timeout_ms / 2)
        except (RetriableError, ConfigurationError, DecisionInDoubtError) as error:
            # A failed search proves nothing, and an unanswered barrier decides nothing. FencedError passes.
            logger.warning("sink %r could not read its markers: %s", self._settings.sink, error)
            return dict.fromkeys((name for names in wanted.values() for name in names), Evidence.UNKNOWN)

    def recover_and_abort(self, decided: Collection[KafkaHandle]) -> None:
        """See :class:`SinkCommitter`: rule 7."""
        sweep(self._client, self._settings, spared=decided, below=self._driver_epoch + 1)

    def initialize_state(
        self, decided: Sequence[KafkaHandle], scan_start: Mapping[str, Any]
    ) -> Mapping[KafkaHandle, Evidence]:
        """See :class:`SinkCommitter`; warns if the output's partition count has changed since the decision (rule 14)."""
        before, now = scan_start.get("outputs", {}), self._outputs()
        for topic in sorted(set(before) & set(now)):
            if before[topic] != now[topic]:
                logger.warning(
                    "%s had %d partitions and has %d now: keys move to other partitions, so the order of one key's records "
                    "holds only among the old and among the new ones",
                    topic,
                    before[topic],
                    now[topic],
                )
        return super().initialize_state(decided, scan_start)

    def forget(self, kept_scan_start: Mapping[str, Any]) -> None:
        """See :class:`SinkCommitter`: markers below the oldest kept decision."""
        starts = {int(partition): offset for partition, offset in kept_scan_start.get("markers", {}).items()}
        if starts:
            self._log.delete_before(starts)

    def close(self) -> None:
        """See :class:`SinkCommitter`."""
        self._client.close()
        self._log.close()

    def _outputs(self) -> dict[str, int]:
        topic = self._settings.topic
        if topic is None:
            return {}
        described = self._log.admin.describe_topics(TopicCollection([topic]), request_timeout=self._timeout_ms / 1000)
        try:
            return {name: len(future.result().partitions) for name, future in described.items()}
        except KafkaException:
            return {}  # the writers report what is wrong with the topic, at their first record
