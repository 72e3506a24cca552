"""Disaster recovery: MirrorMaker 2 copies the source, the output and the ledger to a second cluster, and the first one is lost.

`docs/operations.md`, "Cluster failover and mirrored topics", says what to do then. These tests check each of its statements.
"""

from __future__ import annotations

import dataclasses
import json
import shutil
import time
from collections import Counter
from typing import TYPE_CHECKING

import pytest
from confluent_kafka import IsolationLevel, Producer, TopicPartition
from confluent_kafka.admin import AdminClient
from pyspark.errors import StreamingQueryException

from tests.live.operate.mirrors import Mirrored, ends, mirroring, positions
from tests.live.operate.support import command
from tests.live.pipeline import Tasks, create_topic
from tests.live.rules.batches import rows_of, seen
from tests.live.rules.schedules import Play, crash, until
from tests.live.spark_support import Pipeline, finish, spark
from tests.reader import committed
from twopc import AdoptQuery
from twopc.errors import DecisionLogDamagedError, RefusedStartError
from twopc.integration.services.kafka import LocalKafka
from twopc.integration.spark import exactly_once
from twopc.override import Overrides
from twopc.settings import Settings
from twopc.sinks.kafka import KafkaSink

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    from pyspark.sql import DataFrame, SparkSession


__all__ = ["spark"]

_ENTRY = "docs/operations.md#cluster-failover-and-mirrored-topics"
_BATCH = 20


@pytest.fixture
def mirror() -> Iterator[LocalKafka]:
    """A second cluster."""
    with LocalKafka() as kafka:
        yield kafka


@pytest.mark.whole
@pytest.mark.parametrize("is_decided", [False, True])
def test_a_mirrors_copy_of_the_ledger_is_refused_and_nothing_is_written(
    play: Play, fresh_kafka: LocalKafka, *, is_decided: bool
) -> None:
    """With the binding and without it.

    Fails if a copy is read as a ledger: the driver acquires it, searches a visible batch at another cluster's offsets, and is
    blocked with advice that cannot help.
    """
    for batch in range(3):
        play.driver().process(play.batch(batch), Tasks(play, rows_of(batch)))
    if is_decided:
        crash(play.driver(), play, 3, rows_of(3), "driver.decided")
    last = 3 if is_decided else 2
    source = play.sink
    with mirroring(play.bootstrap_servers, fresh_kafka, [play.topic, source.ledger]) as two:
        two.await_copied()
        ledger = positions(two.servers, source.ledger)
        assert [one[2] for one in ledger] == [one[2] for one in positions(two.former, source.ledger)]
        assert ledger != positions(two.former, source.ledger)  # the same records at other offsets
        play.sink = dataclasses.replace(source, bootstrap_servers=two.servers)

        again = Tasks(play, rows_of(last))
        with pytest.raises(RefusedStartError, match=_ENTRY) as refused:
            play.driver().process(play.batch(last), again)
        assert refused.value.case == "binding"

        kept = play.root.with_name("kept")
        shutil.move(play.root, kept)  # as if it were a new checkpoint, or as if the binding had been removed
        with pytest.raises(DecisionLogDamagedError, match=_ENTRY):
            play.driver().process(play.batch(last), again)
        ended = Settings(overrides=Overrides(end_query_ids={play.query_id}))
        with pytest.raises(DecisionLogDamagedError, match="a mirrored copy"):
            play.driver(ended).process(play.batch(0, query_id="another"), again)
        shutil.rmtree(play.root, ignore_errors=True)
        for words in (("status",), ("resolve",), ("transactions", "prove"))[: 3 if is_decided else 1]:
            said = command(*words, play.name, "--bootstrap-servers", two.servers, "--timeout", "20")
            assert said.status != 0 and "a mirrored copy" in " ".join((said.out + said.error).split()), said

        assert (again.prepared, again.evaluated) == (0, 0)
        assert positions(two.servers, source.ledger) == ledger
        assert committed(two.servers, play.topic) == seen(3)
        shutil.move(kept, play.root)
        play.sink = source  # the query on the first cluster is unharmed
        play.driver().process(play.batch(last), Tasks(play, rows_of(last)))
        assert play.visible() == seen(last + 1)


@pytest.mark.whole
@pytest.mark.parametrize("exactly_once", [False, True])
def test_a_killed_mirror_repeats_records_unless_it_copies_in_transactions(
    fresh_kafka: LocalKafka, mirror: LocalKafka, *, exactly_once: bool
) -> None:
    """The mirror's transactions have control records, so offsets move, as they do after the source's transactions."""
    servers = fresh_kafka.bootstrap_servers
    topic = create_topic(servers, "copied", 1)
    producer = Producer({"bootstrap.servers": servers, "enable.idempotence": True})
    with mirroring(servers, mirror, [topic], exactly_once=exactly_once) as two:
        two.maker.stop()
        two.maker.properties["offset.flush.interval.ms"] = (
            "3600000"  # so the kill comes before MirrorMaker records what it has copied
        )
        two.maker.start()
        for number in range(50):
            producer.produce(topic, f"{number}".encode())
        producer.flush()
        two.await_copied()
        two.maker.kill()
        producer.produce(topic, b"last")
        producer.flush()
        two.maker.start()
        two.await_copied()
        found = committed(two.servers, topic)
        repeated = found - committed(servers, topic)
        assert repeated.total() == (0 if exactly_once else 50)
        assert positions(two.servers, topic) != positions(servers, topic)


@pytest.mark.whole
@pytest.mark.parametrize("isolation", ["read_committed", "read_uncommitted"])
def test_mirrored_offsets_differ_and_only_a_read_committed_mirror_leaves_out_aborted_records(
    fresh_kafka: LocalKafka, mirror: LocalKafka, isolation: str
) -> None:
    """Offsets differ after a transaction, and after records that were deleted before the mirror began."""
    servers = fresh_kafka.bootstrap_servers
    transactional, deleted = create_topic(servers, "transactional", 1), create_topic(servers, "deleted", 1)
    producer = Producer({"bootstrap.servers": servers, "transactional.id": "outsider"})
    producer.init_transactions(30)
    for end, value in ((producer.abort_transaction, b"aborted"), (producer.commit_transaction, b"committed")):
        producer.begin_transaction()
        producer.produce(transactional, value)
        producer.produce(deleted, value)
        producer.flush()
        end()
    admin = AdminClient({"bootstrap.servers": servers})
    [done] = admin.delete_records([TopicPartition(deleted, 0, 1)]).values()
    done.result()
    found = Mirrored(servers, mirror, [transactional, deleted])
    found.maker.properties["former.consumer.isolation.level"] = isolation
    with found.maker:
        found.await_copied()
        expected = {"committed": 1} if isolation == "read_committed" else {"aborted": 1, "committed": 1}
        assert committed(found.servers, transactional) == Counter(expected)
        for topic in (transactional, deleted):
            former, copied = (positions(where, topic)[-1] for where in (servers, found.servers))
            assert former[2] == copied[2] == b"committed" and former[1] > copied[1]


class Failover:
    """A query on the first cluster, and its remains on the mirror."""

    def __init__(self, former: LocalKafka, mirror: LocalKafka, root: Path, spark: SparkSession) -> None:
        self.former, self.mirror, self.root, self._spark = former, mirror, root, spark
        self.pipeline = Pipeline(former.bootstrap_servers, root, max_offsets=_BATCH)
        options = self.pipeline.options
        self.source, self.output = options.sources[0], str(options.topic)
        self.topics = [self.source, self.output, f"twopc-ledger-{options.name}"]

    @property
    def servers(self) -> str:
        return self.mirror.bootstrap_servers

    def run(self, count: int) -> None:
        """Feed and process some records on the first cluster."""
        self.pipeline.feed(count)
        self.pipeline.run(self._spark)

    def decide_only(self, count: int) -> None:
        """Feed one batch and stop the driver between its decision and the commit."""
        self.pipeline.feed(count)
        self.pipeline.fail_at(self._spark, "driver.decided")

    def require_refused(self) -> None:
        """The query itself does not write to the mirror, and says where to read on."""
        output = positions(self.servers, self.output)
        checkpoint = self.root / "tried"
        shutil.copytree(self.pipeline.options.checkpoint, checkpoint)
        settings = {"checkpoint_location": str(checkpoint)}
        tried = {"bootstrap_servers": self.servers, "checkpoint": str(checkpoint), "settings": settings}
        finished, planned = (self._last(checkpoint / name) for name in ("commits", "offsets"))
        if planned == finished:
            self.pipeline.run(self._spark, **tried)  # this run starts no batch, so nothing is refused
            self.feed_more(1)
        assert _ENTRY in self.pipeline.fail(self._spark, **tried)
        assert self._last(checkpoint / "offsets") == finished + 1  # Spark has planned a batch
        assert positions(self.servers, self.output) == output

    def run_on_mirror(self) -> None:
        """Run the query itself on the mirror."""
        self.pipeline.run(self._spark, bootstrap_servers=self.servers)

    @staticmethod
    def _last(directory: Path) -> int:
        return max(int(path.name) for path in directory.iterdir() if path.name.isdigit())

    def missing(self) -> int:
        """The number of records without output on the mirror. All other records have their output once."""
        found = committed(self.servers, self.output)
        assert not found - self.pipeline.given
        return (self.pipeline.given - found).total()

    def doubled(self) -> int:
        """The number of surplus records in the mirror's output."""
        return (committed(self.servers, self.output) - self.pipeline.given).total()

    def require_exactly_once(self) -> None:
        assert committed(self.servers, self.output) == self.pipeline.given

    def ends(self, topic: str) -> str:
        """The last stable offset of each partition on the mirror, as Spark's options take it."""
        found = ends(self.servers, topic, IsolationLevel.READ_COMMITTED)
        return json.dumps({topic: {str(partition): end for partition, end in found.items()}})

    def reader(self, topic: str) -> dict[str, str]:
        """As the page says, a killed mirror leaves aborted copies."""
        return {
            "kafka.bootstrap.servers": self.servers,
            "kafka.isolation.level": "read_committed",
            "subscribe": topic,
        }

    def feed_mirror(self, values: Sequence[str]) -> None:
        """Producers send the missing records to the mirror."""
        producer = Producer({"bootstrap.servers": self.servers, "enable.idempotence": True})
        for value in values:
            producer.produce(self.source, value.encode(), b"moved")
        producer.flush()

    def feed_more(self, count: int) -> None:
        """Producers have moved to the mirror."""
        values = [f"moved-{len(self.pipeline.given)}-{number}" for number in range(count)]
        self.pipeline.given.update(values)
        self.feed_mirror(values)

    def written_since(self, since_ms: int, ends: str) -> DataFrame:
        """The records of the mirror's output from a time on, up to its end at the failover."""
        options = {"startingTimestamp": str(since_ms), "startingOffsetsByTimestampStrategy": "latest"}
        reader = self._spark.read.format("kafka").options(**self.reader(self.output), **options)
        return reader.option("endingOffsets", ends).load().select("value").distinct()

    def go_on(
        self,
        start: dict[str, str],
        *,
        without: DataFrame | None = None,
        checkpoint: str | None = None,
        adopted: str | None = None,
    ) -> None:
        """Run a new query on the mirror, with another name and checkpoint, and perhaps without rows that are already there."""
        checkpoint = checkpoint or str(self.root / "after")
        frame = self._spark.readStream.format("kafka").options(**self.reader(self.source), **start).load()
        rows = frame.select("key", "value")
        if without is not None:
            rows = rows.join(without, "value", "left_anti")
        sink = KafkaSink(name="after", topic=self.output, bootstrap_servers=self.servers, timeout_ms=20_000)
        each = exactly_once(
            sink, checkpoint_location=checkpoint, override=[] if adopted is None else AdoptQuery(adopted)
        )
        writer = rows.writeStream.foreachBatch(each).option("checkpointLocation", checkpoint)
        query = writer.trigger(availableNow=True).start()
        finish(query, each)


@pytest.fixture
def failover(fresh_kafka: LocalKafka, mirror: LocalKafka, tmp_path: Path, spark: SparkSession) -> Iterator[Failover]:
    found = Failover(fresh_kafka, mirror, tmp_path, spark)
    yield found
    found.pipeline.close()


@pytest.mark.whole
@pytest.mark.timeout(600)
@pytest.mark.parametrize("case", ["decided", "output behind", "source behind"])
def test_a_new_query_that_omits_the_mirrors_rows_loses_and_duplicates_nothing(failover: Failover, case: str) -> None:
    """The first cluster dies with a decided batch, or before the mirror has copied some output, or some of its source."""
    former, pipeline = failover.former, failover.pipeline
    again: list[str] = []
    with mirroring(former.bootstrap_servers, failover.mirror, failover.topics) as two:
        failover.run(2 * _BATCH)
        since_ms = int(time.time() * 1000)
        if case == "decided":
            failover.run(2 * _BATCH)
            failover.decide_only(_BATCH)
            two.await_copied()
        elif case == "output behind":
            pipeline.feed(3 * _BATCH)
            pipeline.flush()
            two.await_copied()
        else:
            two.await_copied()
            two.only(failover.output)
            again = pipeline.feed(3 * _BATCH)
            failover.run(0)
            two.await_copied(failover.output)
        two.maker.stop()
        if case == "output behind":
            failover.run(0)
        former.kill()
        assert failover.missing() == {"decided": _BATCH, "output behind": 3 * _BATCH, "source behind": 0}[case]
        if case == "source behind":
            try:
                failover.run_on_mirror()
            except StreamingQueryException as error:  # Spark may notice that the checkpoint is ahead of the source
                assert "failOnDataLoss" in str(error)  # noqa: PT017 - Spark may not notice at all
        else:
            failover.require_refused()

        there = failover.written_since(since_ms, failover.ends(failover.output))
        start = {"startingTimestamp": str(since_ms), "startingOffsetsByTimestampStrategy": "latest"}
        failover.feed_mirror(again)
        failover.go_on(start, without=there)
        failover.require_exactly_once()
        failover.feed_more(_BATCH)
        failover.go_on(start)  # from now on, there are no records to leave out
        failover.require_exactly_once()

        if case == "decided":
            # The first cluster returns, its query commits its decision, and an operator starts the mirror again.
            former.start()
            failover.run(0)
            two.maker.start()
            assert until(lambda: failover.doubled() == _BATCH, 60)


@pytest.mark.whole
@pytest.mark.timeout(600)
def test_a_new_query_does_not_see_the_transaction_of_a_killed_mirror(failover: Failover) -> None:
    """The mirror copies in transactions, as the page advises, and dies in the middle of one.

    Its brokers abort the transaction. Fails if the new query reads the aborted copies: it would omit rows that no
    reader sees, and write twice the events that the producers resend.
    """
    since_ms = int(time.time() * 1000)
    failover.run(2 * _BATCH)
    former = failover.former
    two = Mirrored(former.bootstrap_servers, failover.mirror, [failover.source, failover.output], exactly_once=True)
    two.hold_open()
    with two.maker:
        for topic in two.topics:
            two.await_written(topic)
        two.maker.kill()
    former.kill()
    for topic in two.topics:
        two.await_ended(topic)
    assert failover.missing() == 2 * _BATCH

    there = failover.written_since(since_ms, failover.ends(failover.output))
    failover.feed_mirror(list(failover.pipeline.given))
    start = {"startingTimestamp": str(since_ms), "startingOffsetsByTimestampStrategy": "latest"}
    failover.go_on(start, without=there)
    failover.require_exactly_once()


@pytest.mark.whole
@pytest.mark.timeout(600)
def test_a_planned_failover_continues_at_the_mirrors_end_offsets(failover: Failover) -> None:
    with mirroring(failover.former.bootstrap_servers, failover.mirror, failover.topics) as two:
        failover.run(3 * _BATCH)  # the producers are stopped, and every record is processed
        said = command("status", failover.pipeline.options.name, "--bootstrap-servers", two.former)
        assert said.status == 0, said
        two.await_copied()
        two.maker.stop()
        failover.former.stop()
    ends = failover.ends(failover.source)
    failover.feed_more(_BATCH)
    failover.go_on({"startingOffsets": ends})
    failover.require_exactly_once()


@pytest.mark.whole
@pytest.mark.timeout(600)
@pytest.mark.parametrize("is_behind", [False, True])
def test_a_restored_savepoint_repeats_later_batches_and_loses_earlier_rows_that_the_mirror_lacked(
    failover: Failover, *, is_behind: bool
) -> None:
    """The query continues only if the mirror's source has the same offsets as the previous source.

    The savepoint keeps the query's state.
    """
    pipeline, directory = failover.pipeline, failover.root / "savepoints"
    with mirroring(failover.former.bootstrap_servers, failover.mirror, failover.topics) as two:
        failover.run(2 * _BATCH)
        two.await_copied()
        if is_behind:
            pipeline.feed(2 * _BATCH)
            pipeline.flush()
            two.await_copied(failover.source)
            two.maker.stop()
            failover.run(0)
        taken = command("savepoint", "create", pipeline.options.checkpoint, str(directory), "--json")
        assert taken.status == 0, taken
        if not is_behind:
            failover.run(2 * _BATCH)
            failover.decide_only(_BATCH)
            two.await_copied()
            two.maker.stop()
        assert positions(two.former, failover.source) == positions(two.servers, failover.source)
        failover.former.kill()
    new = str(failover.root / "restored")
    asked = command("savepoint", "restore", str(directory), new, "--bootstrap-servers", two.servers)
    said = " ".join(asked.error.split())
    assert asked.status != 0 and "the checkpoint is bound to another" in said and _ENTRY in said, asked
    restored = command("savepoint", "restore", str(directory), new, "--json")
    assert restored.status == 0, restored
    failover.go_on({}, checkpoint=new, adopted=restored.facts["query_id"])
    assert failover.doubled() == (0 if is_behind else 2 * _BATCH)
    lost = pipeline.given - committed(two.servers, failover.output)
    assert lost.total() == (2 * _BATCH if is_behind else 0)
