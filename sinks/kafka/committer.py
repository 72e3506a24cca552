"""The driver's side of a Kafka sink: take over, confirm, commit and prove, sweep."""

from __future__ import annotations

import logging
import time
from typing import TYPE_CHECKING, Any, Final

from confluent_kafka import KafkaException, TopicCollection

from sinks.kafka import markers, transactions
from sinks.kafka.transactions import Description, ProducerIdentity, TransactionClient
from sinks.kafka.writer import KafkaHandle
from twopc.committer import SinkCommitter
from twopc.crash_points import crash_point, is_armed
from twopc.errors import ConfigurationError, DecisionInDoubtError, PrepareTimeoutError, RetriableError
from twopc.handle import Evidence

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping, Sequence

    from sinks.kafka.decision_log import KafkaDecisionLog
    from sinks.kafka.sink import KafkaSink
    from twopc.attempt import Claim

logger = logging.getLogger(__name__)

_ASK_AGAIN: Final = frozenset({transactions.CONCURRENT, transactions.NO_ANSWER})
_BACKOFF_S: Final = 0.005
_BACKOFF_MAX_S: Final = 0.5


class KafkaCommitter(SinkCommitter[KafkaHandle]):
    """See :class:`SinkCommitter`."""

    def __init__(self, sink: KafkaSink) -> None:
        self._sink = sink
        self._timeout_ms = sink.timeout_ms
        self._client = TransactionClient(sink.committing_config())
        self._ledger = sink.create_decision_log()
        self._driver_epoch = -1

    def binding(self) -> Mapping[str, str]:
        """See :class:`SinkCommitter`: the cluster and the ledger, by their ids."""
        return {
            "cluster": self._client.cluster_id,
            "ledger": self._ledger.name,
            "ledger_id": self._ledger.identity(),
        }

    def decision_log(self) -> KafkaDecisionLog:
        """See :class:`SinkCommitter`: partition 0 of the ledger."""
        return self._ledger

    def inspect(self) -> None:
        """See :class:`SinkCommitter`: the ledger's settings (rule 14), and the right that the sweep needs (rule 7)."""
        self._ledger.require_safe()
        probe = f"{self._sink.name}.0.preflight.0"
        answer = self._until_answered(
            [probe], lambda ids: {tid: found.error for tid, found in self._client.describe(ids).items()}
        )[probe]
        if answer == transactions.NO_ANSWER:
            raise RetriableError(
                f"no transaction coordinator answers at {self._sink.bootstrap_servers} within {self._timeout_ms} ms"
            )
        if answer == transactions.NOT_AUTHORIZED:
            raise ConfigurationError(
                f"sink {self._sink.name!r} may not describe its transactional ids, so open transactions would be invisible "
                f"to it: allow Describe and Write on transactional ids with the prefix '{self._sink.name}.'"
            )

    def acquire(self, claim: Claim) -> int:
        """See :class:`SinkCommitter`."""
        self._driver_epoch = self._ledger.acquire(claim)
        return self._driver_epoch

    def begin_attempt(self) -> dict[str, Any]:
        """See :class:`SinkCommitter`: where the markers will begin, and the output's partition count."""
        return {"markers": markers.ends(self._ledger, timeout_ms=self._timeout_ms), "outputs": self._outputs()}

    def confirm(self, handles: Sequence[KafkaHandle], age_ms: float) -> None:
        """See :class:`SinkCommitter`: rule 3."""
        if not handles:
            return
        left_ms = self._sink.transaction_timeout_ms - age_ms
        if left_ms < self._sink.reserve_ms:
            raise PrepareTimeoutError(
                f"sink {self._sink.name!r}: preparing took {age_ms:.0f} ms, its transactions live "
                f"{self._sink.transaction_timeout_ms} ms: raise kafka.transaction.timeout.ms (and the brokers' "
                "transaction.max.timeout.ms), or make batches smaller (maxOffsetsPerTrigger)"
            )
        descriptions = self._client.describe([handle.transactional_id for handle in handles])
        for handle in handles:
            reason = _why_not(handle, descriptions[handle.transactional_id], self._ledger.name)
            if reason:
                raise RetriableError(f"{handle.transaction} cannot be decided: {reason}")

    def commit(self, handles: Sequence[KafkaHandle], scan_start: Mapping[str, Any]) -> dict[KafkaHandle, Evidence]:
        """See :class:`SinkCommitter`: NONE proves, CONCURRENT_TRANSACTIONS asks again, all else is for the markers (rule 4)."""
        proven: dict[KafkaHandle, Evidence] = {}
        by_id = {handle.transactional_id: handle for handle in handles}

        def end(ids: Sequence[str]) -> dict[str, str]:
            return self._client.end([_identity(by_id[tid]) for tid in ids])

        if is_armed("driver.committing"):  # all are in flight together, unless a test wants to stop in between
            self._until_answered([handles[0].transactional_id], end)
            crash_point("driver.committing")
        answers = self._until_answered(by_id, end)
        for tid, answer in answers.items():
            if answer == transactions.NONE:
                proven[by_id[tid]] = Evidence.COMMITTED
        unclear = [handle for handle in handles if handle not in proven]
        if unclear:
            named = ", ".join(f"{handle.transaction}: {answers[handle.transactional_id]}" for handle in unclear)
            logger.warning("not proven by their commit, looking for their markers: %s", named)
            proven.update(self.evidence(unclear, scan_start))
        self._await_visible([handle for handle, found in proven.items() if found is Evidence.COMMITTED])
        return proven

    def _await_visible(self, committed: Sequence[KafkaHandle]) -> None:
        """Wait until readers see it. NONE answers as soon as the coordinator has the commit; the partitions get it after that.

        Nothing is in doubt here: where a partition has no leader, its rows come when it has one again.
        """
        by_id = {handle.transactional_id: handle for handle in committed}

        def ask(ids: Sequence[str]) -> dict[str, str]:
            return {tid: _unmarked(by_id[tid], found) for tid, found in self._client.describe(ids).items()}

        answers = self._until_answered(by_id, ask)
        late = [by_id[tid].transaction for tid, answer in answers.items() if answer in _ASK_AGAIN]
        if late:
            logger.warning("committed, and not yet readable in every partition: %s", ", ".join(late))

    def abort(self, handles: Sequence[KafkaHandle]) -> None:
        """See :class:`SinkCommitter`: by fencing, so that the writer is stopped wherever it is (rule 7)."""
        self._fence([_identity(handle) for handle in handles])

    def evidence(self, handles: Sequence[KafkaHandle], scan_start: Mapping[str, Any]) -> dict[KafkaHandle, Evidence]:
        """See :class:`SinkCommitter`: by the markers alone."""
        wanted: dict[int, list[str]] = {}
        for handle in handles:
            wanted.setdefault(handle.marker_partition, []).append(handle.uuid)
        found: Mapping[str, Evidence] = {}
        for _ in range(2):
            # First, as a dead driver's orphan would hold back the last stable offset until the time is out; of earlier
            # incarnations only, as one's own may still be decided.
            self._sweep(spared=handles, below=self._driver_epoch)
            found = self._search(wanted, scan_start)
            if Evidence.UNKNOWN not in found.values():
                break
        return {handle: found[handle.uuid] for handle in handles}

    def _search(self, wanted: Mapping[int, Sequence[str]], scan_start: Mapping[str, Any]) -> Mapping[str, Evidence]:
        try:
            return markers.search(self._ledger, wanted, scan_start.get("markers", {}), timeout_ms=self._timeout_ms / 2)
        except (RetriableError, ConfigurationError, DecisionInDoubtError) as error:
            # Not being able to look proves nothing; an unanswered barrier decides nothing. Being fenced goes through.
            logger.warning("the markers of sink %r cannot be read: %s", self._sink.name, error)
            return dict.fromkeys((name for names in wanted.values() for name in names), Evidence.UNKNOWN)

    def recover_and_abort(self, decided: Collection[KafkaHandle]) -> None:
        """See :class:`SinkCommitter`: rule 7."""
        self._sweep(spared=decided, below=self._driver_epoch + 1)

    def initialize_state(
        self, decided: Sequence[KafkaHandle], scan_start: Mapping[str, Any]
    ) -> Mapping[KafkaHandle, Evidence]:
        """See :class:`SinkCommitter`; warns when the output's partition count has changed since (rule 14)."""
        before, now = scan_start.get("outputs", {}), self._outputs()
        for topic in sorted(set(before) & set(now)):
            if before[topic] != now[topic]:
                logger.warning(
                    "%s had %d partitions and has %d now: keys move to other partitions, so the order of one key's records "
                    "holds only within the old and within the new ones",
                    topic,
                    before[topic],
                    now[topic],
                )
        return super().initialize_state(decided, scan_start)

    def forget(self, kept_scan_start: Mapping[str, Any]) -> None:
        """See :class:`SinkCommitter`: markers below the oldest kept decision."""
        starts = {int(partition): offset for partition, offset in kept_scan_start.get("markers", {}).items()}
        if starts:
            self._ledger.delete_before(starts)

    def close(self) -> None:
        """See :class:`SinkCommitter`."""
        self._client.close()
        self._ledger.close()

    # -- parts ---------------------------------------------------------------------------------------------------------

    def _outputs(self) -> dict[str, int]:
        if self._sink.topic is None:
            return {}
        asked = self._ledger.admin.describe_topics(
            TopicCollection([self._sink.topic]), request_timeout=self._timeout_ms / 1000
        )
        try:
            return {topic: len(future.result().partitions) for topic, future in asked.items()}
        except KafkaException:
            return {}  # the writers say what is wrong with it, in the words of the first record

    def _sweep(self, *, spared: Collection[KafkaHandle], below: int) -> None:
        """Fence every open transaction of incarnations below ``below``, except the spared; never a driver's."""
        listing = self._client.list_open(f"{self._sink.name}.")
        candidates = [
            tid for tid in listing.transactional_ids if (of := driver_epoch_of(tid)) is not None and of < below
        ]
        found = self._client.describe(candidates)
        # Each at the epoch that it has now: its worker may use the id again before the sweep comes to it. And spared by
        # that epoch, too: an id whose decided transaction is settled may serve a later batch, which nobody has decided.
        opened = [
            ProducerIdentity(tid, of.producer_id, of.producer_epoch)
            for tid, of in found.items()
            if of.error == transactions.NONE
        ]
        kept = {_identity(handle) for handle in spared}
        orphans = [identity for identity in opened if identity not in kept]
        if orphans:
            named = ", ".join(orphan.transactional_id for orphan in orphans)
            logger.warning("sweeping transactions that nobody has decided: %s", named)
            crash_point("driver.sweeping")
        if self._fence(orphans) or len(opened) < len(candidates) or not listing.complete:
            logger.warning("the sweep of sink %r is incomplete; it is repeated with the next batch", self._sink.name)

    def _fence(self, identities: Sequence[ProducerIdentity]) -> list[str]:
        by_id = {identity.transactional_id: identity for identity in identities}
        answers = self._until_answered(by_id, lambda ids: self._client.fence([by_id[tid] for tid in ids]))
        done = transactions.FENCED | {transactions.NONE}
        return [tid for tid, answer in answers.items() if answer not in done]

    def _until_answered(self, transactional_ids: Iterable[str], ask: Any) -> dict[str, str]:
        """Ask for all in flight together, again for those that are in transition or unanswered, until time runs out."""
        answers = dict.fromkeys(transactional_ids, transactions.NO_ANSWER)
        deadline = time.monotonic() + self._timeout_ms / 1000
        backoff_s = _BACKOFF_S
        waiting = list(answers)
        while waiting:
            answers.update(ask(waiting))
            waiting = [tid for tid in waiting if answers[tid] in _ASK_AGAIN]
            if waiting and time.monotonic() > deadline:
                break
            if waiting:
                time.sleep(backoff_s)  # between two requests to a broker that said "not yet"
                backoff_s = min(backoff_s * 2, _BACKOFF_MAX_S)
        return answers


def driver_epoch_of(transactional_id: str) -> int | None:
    """The incarnation in a task's transactional id ``<sink>.<driver_epoch>.<worker>.<k>``; None for any other id."""
    parts = transactional_id.split(".")
    if len(parts) != 4 or not parts[1].isdigit():  # noqa: PLR2004 - the four parts
        return None
    return int(parts[1])


def _unmarked(handle: KafkaHandle, found: Description) -> str:
    """CONCURRENT while the commit of a transaction has not reached every partition of it."""
    ours = (found.producer_id, found.producer_epoch) == (handle.producer_id, handle.producer_epoch)
    return transactions.CONCURRENT if ours and found.state == "PrepareCommit" else found.error


def _identity(handle: KafkaHandle) -> ProducerIdentity:
    return ProducerIdentity(handle.transactional_id, handle.producer_id, handle.producer_epoch)


def _why_not(handle: KafkaHandle, found: Description, ledger: str) -> str | None:
    """Why a handle cannot be decided; None when it can (rule 3)."""
    if found.error != transactions.NONE:
        return f"its coordinator says {found.error}"
    if found.state != "Ongoing":
        return f"it is {found.state}, not Ongoing: somebody has ended it, or it timed out"
    if (found.producer_id, found.producer_epoch) != (handle.producer_id, handle.producer_epoch):
        return (
            f"the coordinator has producer {found.producer_id} epoch {found.producer_epoch}, the writer had "
            f"{handle.producer_id} epoch {handle.producer_epoch}"
        )
    missing = (handle.topic_partitions() | {f"{ledger}:{handle.marker_partition}"}) - found.partitions
    if missing:
        return (
            f"the coordinator's transaction lacks {', '.join(sorted(missing))}: it was ended and begun again in between"
        )
    return None
