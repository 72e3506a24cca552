"""A batch whose ``offsets/N`` was lost is planned again, at another time. Then its state differs from its rows (rule 10)."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.unit.coordinator_support import die_at, fingerprint
from tests.unit.fake_sink import QUERY_ID, Cluster, Query, all_rows
from twopc.errors import RefusedStartError
from twopc.files import LocalFiles
from twopc.integration.spark.checkpoint import read_batch

if TYPE_CHECKING:
    from pathlib import Path

    from twopc.batch import Batch

NOON, LATER = '"batchTimestampMs":1764345600000', '"batchTimestampMs":1764345660000'
WATERMARK, HIGHER = '"batchWatermarkMs":5', '"batchWatermarkMs":6'


class SparkCheckpoint:
    """A query's checkpoint, as Spark writes it."""

    def __init__(self, root: Path, *, keeps_state: bool = True) -> None:
        self.root = root
        (root / "offsets").mkdir()
        if keeps_state:
            (root / "state/0").mkdir(parents=True)

    def plan(self, batch: int, *facts: str, version: str = "v1") -> Batch:
        name = "" if version == "v1" else "in:"
        text = "\n".join([version, f"{{{','.join(facts)}}}" if facts else "", f'{name}{{"t":{{"0":{batch}}}}}'])
        (self.root / f"offsets/{batch}").write_text(text)
        return read_batch(LocalFiles(self.root), QUERY_ID, batch)


@pytest.fixture
def spark(tmp_path: Path) -> SparkCheckpoint:
    return SparkCheckpoint(tmp_path)


def process(query: Query, batch: Batch) -> None:
    query.checkpoints.complete(
        batch, lambda pending, _: query.coordinator.process(batch, query.engine, pending), lambda _: False
    )


@pytest.mark.parametrize("version", ["v1", "v2"])
@pytest.mark.parametrize("changed", [(WATERMARK, LATER), (HIGHER, NOON)], ids=["another time", "another watermark"])
def test_a_batch_with_state_that_is_planned_again_at_another_time_is_refused(
    changed: tuple[str, str], version: str, cluster: Cluster, tmp_path: Path
) -> None:
    """Fails if the new plan's timers end in the state, but their rows are not written: the decided batch counts as a replay."""
    spark = SparkCheckpoint(tmp_path, keeps_state=True)
    process(cluster.start(), spark.plan(0, WATERMARK, NOON, version=version))
    again, before = cluster.start(), fingerprint(cluster)
    with pytest.raises(RefusedStartError, match="planned again") as refused:
        process(again, spark.plan(0, *changed, version=version))
    assert refused.value.case == "planned again"
    assert again.engine.evaluated == 0 and not again.engine.works
    assert (fingerprint(cluster), cluster.store.visible()) == (before, all_rows(0))


def test_the_refusal_says_how_the_batch_can_be_finished_as_it_was_decided(
    cluster: Cluster, spark: SparkCheckpoint
) -> None:
    process(cluster.start(), spark.plan(0, WATERMARK, NOON))
    with pytest.raises(RefusedStartError) as refused:
        process(cluster.start(), spark.plan(0, HIGHER, LATER))
    for part in (WATERMARK, NOON, HIGHER, LATER, "offsets/0", "EndQuery", "startingOffsets"):
        assert part in str(refused.value)
    finished = cluster.start()
    process(finished, spark.plan(0, WATERMARK, NOON))
    assert finished.engine.evaluated == 1
    process(finished, spark.plan(1, WATERMARK, LATER))
    assert cluster.store.visible() == all_rows(0, 1)


def test_the_batch_after_one_that_was_planned_again_is_refused(cluster: Cluster, spark: SparkCheckpoint) -> None:
    """Otherwise, a function that catches the error of the batch before loses its rows unnoticed."""
    process(cluster.start(), spark.plan(0, WATERMARK, NOON))
    spark.plan(0, WATERMARK, LATER)
    with pytest.raises(RefusedStartError, check=lambda error: error.case == "planned again"):
        process(cluster.start(), spark.plan(1, WATERMARK, LATER))
    assert cluster.store.visible() == all_rows(0)


def test_an_unproven_batch_that_is_planned_again_is_refused_and_its_transactions_stay(
    cluster: Cluster, spark: SparkCheckpoint
) -> None:
    query, batch = cluster.start(), spark.plan(0, WATERMARK, NOON)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("tests.unit.fake_sink.batch_of", lambda *_, **__: batch)
        die_at(cluster, query, "driver.decided", 0)
    with pytest.raises(RefusedStartError, check=lambda error: error.case == "planned again"):
        process(cluster.start(), spark.plan(0, WATERMARK, LATER))
    assert cluster.store.pending() and not cluster.store.visible()
    process(cluster.start(), spark.plan(0, WATERMARK, NOON))
    assert cluster.store.visible() == all_rows(0)


def test_a_stateless_batch_that_is_planned_again_is_a_replay(cluster: Cluster, tmp_path: Path) -> None:
    """Its visible rows are those of the first plan, and nothing else remembers the second plan's time."""
    spark = SparkCheckpoint(tmp_path, keeps_state=False)
    process(cluster.start(), spark.plan(0, WATERMARK, NOON))
    query = cluster.start()
    process(query, spark.plan(0, WATERMARK, LATER))
    process(query, spark.plan(1, WATERMARK, LATER))
    assert cluster.store.visible() == all_rows(0, 1)


@pytest.mark.parametrize("facts", [(), (WATERMARK,), (NOON,)], ids=["no facts", "no time", "no watermark"])
def test_times_that_are_not_known_are_not_compared(
    facts: tuple[str, ...], cluster: Cluster, spark: SparkCheckpoint
) -> None:
    """A decision of an earlier release has no times."""
    process(cluster.start(), spark.plan(0, *facts))
    query = cluster.start()
    process(query, spark.plan(0, WATERMARK, NOON))
    process(query, spark.plan(1, WATERMARK, LATER))
    spark.plan(1, *facts)
    process(query, spark.plan(2, WATERMARK, LATER))
    assert cluster.store.visible() == all_rows(0, 1, 2)
