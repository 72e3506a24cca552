"""Implement the driver's side of a Kafka sink: acquire, confirm, commit, prove and sweep."""

from __future__ import annotations

import logging
import time
from collections import Counter
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any, Final

from twopc.attempt import Evidence
from twopc.committer import SinkCommitter
from twopc.counted import counted
from twopc.decision_log import ABSENT
from twopc.errors import ConfigurationError, RetriableError, UnavailableError
from twopc.sinks.kafka import markers
from twopc.sinks.kafka.decision_log import KafkaDecisionLog
from twopc.sinks.kafka.handle import KafkaHandle, driver_id, task_id
from twopc.sinks.kafka.kept_rows import KeptRows, unended
from twopc.sinks.kafka.ledger_topic import warn_of_weakness
from twopc.sinks.kafka.oauth import failures
from twopc.sinks.kafka.prepared import await_visible, confirm, end_all, fence, sweep
from twopc.sinks.kafka.producer_pool import drop_pool
from twopc.sinks.kafka.reports import NO_ANSWER, NONE, NOT_AUTHORIZED, until_final
from twopc.sinks.kafka.scan_start import ScanStart
from twopc.sinks.kafka.settings import AT_LEAST_ONCE, EXACTLY_ONCE
from twopc.sinks.kafka.transactions import TransactionClient

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence

    from twopc.attempt import Claim, Known, Owner
    from twopc.sinks.kafka.settings import KafkaSettings

logger = logging.getLogger(__name__)

#: Explanations of reports whose names are not self-explanatory.
_ANSWERS: Final = {
    NO_ANSWER: "no response",
    NOT_AUTHORIZED: "not authorized. Allow Write and Describe on the transactional ids that start with the sink name and a dot",
}


class KafkaCommitter(SinkCommitter[KafkaHandle]):
    """See :class:`SinkCommitter`."""

    def __init__(self, settings: KafkaSettings) -> None:
        self._settings = settings
        if settings.guarantee != EXACTLY_ONCE:
            text = (
                "sink %r has guarantee=%r, so readers see rows before the batch is decided, and a failure may %s rows"
            )
            what = "duplicate" if settings.guarantee == AT_LEAST_ONCE else "lose or duplicate"
            logger.warning(text, settings.name, settings.guarantee, what)
        self._timeout_ms = settings.timeout_ms
        self._client = TransactionClient(settings.committing_config())
        with ExitStack() as opened:
            opened.callback(self._client.close)
            self._log = KafkaDecisionLog(settings, cluster=self._client.cluster_id)
            opened.pop_all()
        self._scan_start = ScanStart(self._log, settings.topic, timeout_ms=settings.timeout_ms)
        self._kept_rows = KeptRows(self._client, timeout_ms=settings.timeout_ms)
        self._confirmed: frozenset[KafkaHandle] = frozenset()  # confirmed by this driver, but not committed yet
        self._spared: Sequence[KafkaHandle] = ()  # other decisions that a start must commit
        self._unread: list[str] = []  # why the last search for markers proved nothing
        self._blockers: list[str] = []
        self._orphans_ended = 0
        self._decides_in_checkpoint = False

    def binding(self) -> Mapping[str, str]:
        """See :class:`SinkCommitter`. Identify the cluster and the ledger by their ids."""
        return {"cluster": self._client.cluster_id, "ledger": self._log.name, "ledger_id": self._log.identity()}

    def decision_log(self) -> KafkaDecisionLog:
        """See :class:`SinkCommitter`."""
        return self._log

    def inspect(self) -> None:
        """See :class:`SinkCommitter`. Check the ledger's settings (rule 14) and the permission for sweeps (rule 7)."""
        is_new = self._log.identity() == ABSENT
        if not is_new:
            self._log.topic.require_safe()
        if self._settings.topic is not None:
            warn_of_weakness(self._log.admin, self._settings.topic, timeout_ms=self._timeout_ms)
        sink = self._settings.name

        def look(ids: Sequence[str]) -> dict[str, str]:
            return {tid: found.error for tid, found in self._client.describe(ids).items()}

        probe = task_id(sink, 0, "preflight", 0)
        report = until_final([probe], look, timeout_ms=self._timeout_ms)[probe]
        if report == NO_ANSWER:
            silent = f"no transaction coordinator responded at {self._settings.bootstrap_servers} within {self._timeout_ms} ms"
            raise UnavailableError("; ".join([silent, *self._failures()]))
        if report == NOT_AUTHORIZED:
            raise ConfigurationError(
                f"sink {sink!r} has no permission to describe its transactional ids, so it cannot find transactions "
                "that a failed driver left open. Nothing was written. Allow Describe and Write on transactional ids "
                f"with the prefix '{sink}.'"
            )
        if is_new:
            self._warn_of_a_namesake()

    def _warn_of_a_namesake(self) -> None:
        """Warn if a driver has used the sink name, but the ledger does not exist.

        Transactional ids contain the sink's name, but not the ledger's name.
        """
        sink = self._settings.name
        driver = driver_id(sink)
        if self._client.describe([driver])[driver].error == NONE:
            logger.warning(
                "a driver of sink %r has already used this cluster, but the ledger %s does not exist. If another "
                "query uses the same sink name with a different ledger_topic, rows are at risk, because the two queries "
                "stop each other, and may end each other's decided transactions. In that case, stop this query, and "
                "rename its sink. If you deleted the old ledger on purpose, ignore this warning",
                sink,
                self._log.name,
            )

    def has_unknown_commit(self, known: Known[KafkaHandle], scan_start: Mapping[str, Any]) -> bool:
        """See :class:`SinkCommitter`. Every committed transaction has a marker."""
        if self._log.identity() == ABSENT:
            return False
        return markers.has_unknown(self._log, known, scan_start.get("markers", {}), timeout_ms=self._timeout_ms)

    def acquire(self, claim: Claim, seen: Owner | None = None) -> int:
        """See :class:`SinkCommitter`. The brokers fence the previous driver."""
        del seen
        self._decides_in_checkpoint = claim.decides_in_checkpoint
        return self._log.acquire(claim)

    def begin_attempt(self) -> dict[str, Any]:
        """See :class:`SinkCommitter`. Return the markers' start offsets, and the output's partition count and topic id."""
        topic = self._settings.topic
        topic_ids = self._kept_rows.topic_ids([topic]) if topic is not None else {}
        return {**self._scan_start.take(), "topic_ids": topic_ids}

    def confirm(self, handles: Sequence[KafkaHandle], age_ms: float) -> None:
        """See :class:`SinkCommitter`. Apply rule 3.

        If the decisions are in the checkpoint, a driver with another copy of the checkpoint may have fenced this driver. The
        decision log would not stop this driver, so the sink must stop it.
        """
        if handles:
            began = time.monotonic()
            for handle, why in self._kept_rows.recreated(handles).items():
                raise RetriableError(
                    f"{handle.transaction} cannot be decided: {why}. No part of this attempt is visible"
                )
            confirm(self._client, self._settings, handles, age_ms + (time.monotonic() - began) * 1000)
            self._confirmed = frozenset(handles)
            if self._decides_in_checkpoint:
                self._log.require_unfenced(handles[0].marker_partition)

    def commit(self, handles: Sequence[KafkaHandle], scan_start: Mapping[str, Any]) -> dict[KafkaHandle, Evidence]:
        """See :class:`SinkCommitter`. A response of NONE proves the commit.

        After any other response, search for the markers (rule 4). The response does not say whether the partitions still
        contain the rows, so ask the partitions before the commit.
        """
        withheld = self._withhold(handles, scan_start.get("topic_ids", {}))
        ended = [handle for handle in handles if handle not in withheld]
        reports = withheld | end_all(self._client, ended, timeout_ms=self._timeout_ms)
        proven = {handle: Evidence.COMMITTED for handle, report in reports.items() if report == NONE}
        unclear = [handle for handle in handles if handle not in proven]
        if unclear:
            named = ", ".join(f"{handle.transaction}: {reports[handle]}" for handle in unclear)
            logger.warning(
                "the responses do not prove that these transactions were committed, so the driver is searching for their "
                "markers: %s",
                named,
            )
            proven.update(self.prove(unclear, scan_start))
        unproven = {handle: reports[handle] for handle in unclear if proven[handle] is Evidence.UNKNOWN}
        self._blockers = [self._why(unproven)] if unproven else []
        committed = [handle for handle, found in proven.items() if found is Evidence.COMMITTED]
        await_visible(self._client, committed, timeout_ms=self._timeout_ms)
        return proven

    def _withhold(self, handles: Sequence[KafkaHandle], topic_ids: Mapping[str, str]) -> dict[KafkaHandle, str]:
        """Abort open transactions that have lost rows, so that the rest of their rows never becomes visible (rule 9).

        Return the transactions that must not be committed, and why.
        """
        confirmed, self._confirmed = self._confirmed, frozenset()
        missing: dict[KafkaHandle, str] = {}
        if here := [handle for handle in handles if handle in confirmed]:
            missing |= self._kept_rows.recreated(here)
        elsewhere = [handle for handle in handles if handle not in confirmed]
        # When a driver starts, these transactions have usually all ended, so there is no need to ask their partitions.
        if still_open := [*unended(self._client, elsewhere, timeout_ms=self._timeout_ms)]:
            missing |= self._kept_rows.absent(still_open, topic_ids)
        # Ask the coordinators last. If a transaction is still open now, then it was open when the partitions were asked.
        found = unended(self._client, missing, timeout_ms=self._timeout_ms)
        torn = {handle: missing[handle] for handle, description in found.items() if description.error == NONE}
        for handle, why in torn.items():
            logger.error(
                "the decided transaction %s has lost rows: %s. The driver aborts the transaction, and its rows must be written "
                "again",
                handle.transaction,
                why,
            )
        self.abort(list(torn))
        return {handle: torn.get(handle, description.error) for handle, description in found.items()}

    def blockers(self) -> Sequence[str]:
        """See :class:`SinkCommitter`.

        The reasons include the coordinators' last responses, the marker search and the time limit.
        """
        return self._blockers

    def _why(self, unproven: Mapping[KafkaHandle, str]) -> str:
        answers = Counter(
            f"{self._client.coordinator_of(handle.transactional_id)}: {_ANSWERS.get(report, report)}"
            for handle, report in unproven.items()
        )
        ends = [
            f"the commit of {counted(count, 'transaction')} at {answer}" for answer, count in sorted(answers.items())
        ]
        silent = self._failures() if NO_ANSWER in unproven.values() else failures()
        return (
            f"sink {self._settings.name!r}: {'; '.join([*ends, *self._unread, *silent])}. Decided transactions expire "
            f"after kafka.transaction.timeout.ms={self._settings.transaction_timeout_ms} ms, and the driver must then "
            "write their rows again"
        )

    def _failures(self) -> list[str]:
        """Say why a broker may not have responded. Omit a token's failure if a connection error already quotes it."""
        errors = self._client.connection_errors()
        return [*errors, *(why for why in failures() if not any(why in error for error in errors))]

    def abort(self, handles: Sequence[KafkaHandle]) -> None:
        """See :class:`SinkCommitter`. Abort by fencing, which stops the writer on any machine (rule 7)."""
        fence(self._client, [handle.identity for handle in handles], timeout_ms=self._timeout_ms)

    def prove(self, handles: Sequence[KafkaHandle], scan_start: Mapping[str, Any]) -> dict[KafkaHandle, Evidence]:
        """See :class:`SinkCommitter`. Only the markers count as proof."""
        found: dict[KafkaHandle, Evidence] = {}
        start, spared = scan_start.get("markers", {}), [*handles, *self._spared]
        for _ in range(2):
            # Sweep first, because a dead driver's open transaction holds back the last stable offset until it times out. Sweep
            # only earlier driver epochs, because this driver may still decide its own transactions.
            self._orphans_ended += sweep(self._client, self._settings, spared=spared, below=self._log.driver_epoch)
            found, self._unread = markers.search(self._log, handles, start, timeout_ms=self._timeout_ms / 2)
            if Evidence.UNKNOWN not in found.values():
                break
        return found

    def recover_and_abort(self, decided: Collection[KafkaHandle]) -> None:
        """See :class:`SinkCommitter`. Apply rule 7 as the last step of each batch."""
        below = self._log.driver_epoch + 1
        self._orphans_ended += sweep(self._client, self._settings, spared=decided, below=below)

    def prefetch(self) -> None:
        """See :class:`SinkCommitter`. Request the start offsets of the next attempt's markers."""
        self._scan_start.request()

    def orphans_ended(self) -> int:
        """See :class:`SinkCommitter`."""
        return self._orphans_ended

    def initialize_state(
        self,
        decided: Sequence[KafkaHandle],
        scan_start: Mapping[str, Any],
        spared: Sequence[KafkaHandle] = (),
        *,
        is_own: bool = True,
    ) -> Mapping[KafkaHandle, Evidence]:
        """See :class:`SinkCommitter`. Warn if the output's partition count has changed since the decision (rule 14)."""
        before, now = scan_start.get("outputs", {}), self._scan_start.outputs
        for topic in sorted(set(before) & set(now)):
            if before[topic] != now[topic]:
                logger.warning(
                    "%s had %d partitions and now has %d, so some keys move to other partitions. No row is lost or "
                    "duplicated, but readers may see a key's new records before its old records",
                    topic,
                    before[topic],
                    now[topic],
                )
        self._spared = spared
        try:
            return super().initialize_state(decided, scan_start, spared, is_own=is_own)
        finally:
            self._spared = ()

    def forget(self, kept_scan_start: Mapping[str, Any]) -> None:
        """See :class:`SinkCommitter`. Delete markers that are older than the oldest retained decision."""
        starts = {int(partition): offset for partition, offset in kept_scan_start.get("markers", {}).items()}
        if starts:
            self._scan_start.at_least(starts)
            self._log.delete_before(starts)

    def close(self) -> None:
        """See :class:`SinkCommitter`."""
        drop_pool(self._settings.place, self._log.driver_epoch)
        if self._settings.guarantee != EXACTLY_ONCE:
            from twopc.sinks.kafka.plain_writer import let_go  # noqa: PLC0415 - most sinks do not need it

            let_go(self._settings)
        self._client.close()
        self._log.close()
