"""A cut-over with a dead-letter sink, whose ledger may contain the decisions: restarts, kills and the way back stay exact."""

from __future__ import annotations

import json
from collections import Counter
from contextlib import closing
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

import pytest

from tests.live.migrate.support import OldPipeline
from tests.live.pipeline import create_topic
from tests.reader import committed
from twopc.log_view import fold
from twopc.sinks.kafka import KafkaSink

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from pyspark.sql import SparkSession

    from tests.live.services import KafkaService

pytestmark = [pytest.mark.timeout(900), pytest.mark.filterwarnings("ignore:unclosed:ResourceWarning")]


class WithDeadLetter(OldPipeline):
    """The old query writes with Spark's own Kafka sink. The new one also has a sink for bad rows."""

    def __init__(self, servers: str, root: Path, letters: str) -> None:
        super().__init__(servers, root)
        self.bad = f"{letters}{self.name}"
        self.options: dict[str, str] = {}
        self.bad_topic = create_topic(servers, f"{self.bad}-rows", 1)

    def run_new(self, spark: SparkSession, **options: Any) -> None:
        super().run_new(spark, dead_letter=self.dead_letter(), **options)

    def drivers(self) -> set[str]:
        """The run of the last driver of each sink. The brokers have fenced every earlier one."""
        runs = set()
        for sink in (self.new_sink(), self.dead_letter()):
            with closing(sink.create_decision_log()) as log:
                acquired = fold(log.inspect()).acquired
            assert acquired is not None
            runs.add(acquired.run)
        return runs

    def new_sink(self) -> KafkaSink:
        return replace(super().new_sink(), options=self.options)

    def dead_letter(self) -> KafkaSink:
        return KafkaSink(name=self.bad, bootstrap_servers=self.servers, topic=self.bad_topic, timeout_ms=20_000)

    def letters(self) -> list[str]:
        """The rows that are in the dead-letter topic, by their values."""
        found = committed(self.servers, self.bad_topic)
        return [json.loads(letter)["value"] for letter in found.elements()]

    def require_exact(self) -> None:
        """Check that each row is in the output or in the dead letters, once."""
        assert self.visible() + Counter(self.letters()) == Counter(self.given)

    def run_sparks_sink_into_a_half_written_batch(self, spark: SparkSession) -> None:
        self.feed(40)
        self.run_with_sparks_sink(spark)
        self.feed(40)
        with pytest.raises(Exception, match="the task fails"):
            self.run_with_sparks_sink(spark, fails=True)
        assert 0 < self.visible().total() - 40 < 40


@pytest.fixture
def handed_over(kafka: KafkaService, tmp_path: Path, spark: SparkSession) -> Callable[[str], WithDeadLetter]:
    """A pipeline whose batch 1 is handed over. The argument is the prefix of the dead-letter sink's name."""

    def hand_over(letters: str) -> WithDeadLetter:
        pipeline = WithDeadLetter(kafka.bootstrap_servers, tmp_path, letters)
        pipeline.run_sparks_sink_into_a_half_written_batch(spark)
        pipeline.cut_over("--apply", "--clock-skew-ms", "0")
        return pipeline

    return hand_over


#: Names that sort before and after the pipeline's name, which begins with m. The decisions are in the alphabetically
#: first ledger.
LETTERS: Final = ("bad-", "z-bad-")


@pytest.mark.whole
@pytest.mark.parametrize("letters", LETTERS)
def test_a_query_with_dead_letters_restarts_after_the_cutover(
    letters: str, handed_over: Callable[[str], WithDeadLetter], spark: SparkSession
) -> None:
    pipeline = handed_over(letters)
    for _ in range(2):
        pipeline.run_new(spark)
        pipeline.require_exact()
        pipeline.feed(20)
    assert pipeline.command("rollback")["decided"] is not None
    pipeline.run_old(spark)
    pipeline.require_exact()


@pytest.mark.whole
def test_a_bad_row_written_by_the_old_sink_does_not_become_a_dead_letter(
    kafka: KafkaService, tmp_path: Path, spark: SparkSession
) -> None:
    """The new sink's limit is lower than the old one's."""
    pipeline = WithDeadLetter(kafka.bootstrap_servers, tmp_path, LETTERS[0])
    pipeline.columns = ("key", "rpad(value, 3000, 'x') AS value")
    pipeline.options = {"kafka.message.max.bytes": "2000"}
    pipeline.run_sparks_sink_into_a_half_written_batch(spark)
    written = set(pipeline.visible())
    pipeline.cut_over("--apply", "--clock-skew-ms", "0")
    pipeline.run_new(spark)
    rows = {value.ljust(3000, "x") for value in pipeline.given}
    assert set(pipeline.letters()) == rows - written != set()
    found = pipeline.visible() + Counter(pipeline.letters())
    assert Counter({value.rstrip("x"): count for value, count in found.items()}) == Counter(pipeline.given)


@pytest.mark.whole
@pytest.mark.parametrize("point", ["driver.prepared", "driver.committed"])
def test_a_crash_in_the_handed_over_batch_does_not_stop_a_query_with_dead_letters(
    point: str, handed_over: Callable[[str], WithDeadLetter], spark: SparkSession
) -> None:
    pipeline = handed_over(LETTERS[0])
    pipeline.fail_new_at(spark, point)
    assert not pipeline.commit_file(1).exists()
    pipeline.run_new(spark)
    pipeline.require_exact()
    pipeline.feed(20)
    pipeline.run_new(spark)
    pipeline.require_exact()


@pytest.mark.whole
@pytest.mark.parametrize(("point", "kind"), [("driver.prepared", "rest"), ("driver.committed", "whole")])
def test_a_rollback_with_dead_letters_is_exact(
    point: str, kind: str, handed_over: Callable[[str], WithDeadLetter], spark: SparkSession
) -> None:
    pipeline = handed_over(LETTERS[0])
    pipeline.fail_new_at(spark, point)
    before = pipeline.drivers()
    found = pipeline.command("rollback")
    assert not before & pipeline.drivers(), "the new query's driver should be fenced in every sink"
    assert (found["handover"]["batch_id"], found["handover"]["kind"]) == (1, kind)
    assert pipeline.command("rollback") == found, "a repeated rollback should return the same result"
    pipeline.run_old(spark)
    pipeline.require_exact()
