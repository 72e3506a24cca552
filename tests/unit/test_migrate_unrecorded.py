"""A cut-over refuses an output with rows that the old query's checkpoint does not record."""

from __future__ import annotations

import json
import os
from typing import TYPE_CHECKING, Any, Final

import pytest

from tests.unit.test_migrate_cutover import QUERY, SINK, spark_has
from twopc.errors import ConfigurationError
from twopc.files import LocalFiles
from twopc.integration.migrate import cutover, unrecorded
from twopc.integration.migrate.handover import Bounds, Kind
from twopc.integration.migrate.place import Place
from twopc.integration.migrate.unrecorded import finished_ms

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path

    from twopc.integration.migrate.handover import Handover
    from twopc.sinks.kafka import KafkaSink

RECORDED_MS: Final = 1_700_000_000_123
#: A continuous trigger leaves out the metadata of its epochs.
CONTINUOUS: Final = 'v1\n\n{"in":{"0":7}}'


class Message:
    """A record of the output."""

    def __init__(self, offset: int) -> None:
        self._offset = offset

    def offset(self) -> int:
        return self._offset

    def partition(self) -> int:
        return 0


class Output:
    """The output topic: the times of its records, in ms."""

    def __init__(self, *times: int, controls: tuple[int, ...] = ()) -> None:
        self.times = times
        self.controls = controls

    def bounds_of(
        self, _sink: KafkaSink, _topic: str, since_ms: int, _skew: int, starts: Mapping[int, int] | None
    ) -> dict[int, Bounds]:
        end = len(self.times)
        found = next((offset for offset, at in enumerate(self.times) if at >= since_ms), end)
        exact = found if starts is None else starts[0]
        return {0: Bounds(start=0, exact=exact, end=end)}

    def records_of(self, _sink: KafkaSink, handover: Handover) -> Iterator[tuple[str, Any]]:
        for topic, partitions in handover.topics.items():
            for at in partitions.values():
                yield from ((topic, Message(one)) for one in range(at.start, at.end) if one not in self.controls)


def found_in(
    root: Path,
    output: Output,
    monkeypatch: pytest.MonkeyPatch,
    *,
    finished: int = 1,
    starts: Mapping[str, Mapping[int, int]] | None = None,
    other_writers: bool = False,
) -> Handover:
    """A cut-over after the last recorded batch was recorded at RECORDED_MS."""
    spark_has(root, planned=finished, finished=finished)
    (root / "metadata").write_text(json.dumps({"id": QUERY}))
    name = "metadata" if finished < 0 else f"commits/{finished}"
    os.utime(root / name, ns=(RECORDED_MS * 1_000_000, RECORDED_MS * 1_000_000))
    monkeypatch.setattr(cutover, "bounds_of", output.bounds_of)
    monkeypatch.setattr(unrecorded, "records_of", output.records_of)
    wanted = cutover.Cutover(topics=("enriched",), starts=starts or {}, other_writers=other_writers)
    return cutover.find(wanted, Place(LocalFiles(root), LocalFiles(root / "twopc")), SINK).handover


@pytest.mark.parametrize("finished", [-1, 0, 7])
def test_rows_that_are_newer_than_the_last_recorded_batch_are_refused(
    finished: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In real-time mode, a stopped batch leaves rows, and Spark records the batch only at its end."""
    output = Output(RECORDED_MS - 50, RECORDED_MS + 1)
    with pytest.raises(
        ConfigurationError,
        match=r"at offset 1, .*Nothing was done\. First .*start the old query.*clock of a producer.*--start-offsets",
    ):
        found_in(tmp_path, output, monkeypatch, finished=finished)


def test_rows_from_before_the_end_of_the_last_recorded_batch_are_this_batches_rows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = found_in(tmp_path, Output(RECORDED_MS - 50, RECORDED_MS), monkeypatch)
    assert (found.batch_id, found.kind, found.topics["enriched"][0].start) == (1, Kind.NOTHING, 2)


def test_the_end_marker_of_a_transaction_is_no_row(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A rollback aborts transactions, and the brokers write markers after the batch's end."""
    output = Output(RECORDED_MS - 50, RECORDED_MS + 1, controls=(1,))
    assert found_in(tmp_path, output, monkeypatch).kind is Kind.NOTHING


@pytest.mark.parametrize("options", [{"other_writers": True}, {"starts": {"enriched": {0: 2}}}])
def test_the_user_may_say_that_newer_rows_are_not_the_old_querys_or_are_of_the_finished_batch(
    options: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    output = Output(RECORDED_MS - 50, RECORDED_MS + 1)
    assert found_in(tmp_path, output, monkeypatch, **options).kind is Kind.NOTHING


def test_a_time_in_whole_seconds_covers_the_whole_second(tmp_path: Path) -> None:
    """An object store drops the milliseconds. A row of the last batch must not look newer than the batch."""
    (tmp_path / "commits").mkdir()
    (tmp_path / "commits/1").touch()
    os.utime(tmp_path / "commits/1", (1_700_000_000, 1_700_000_000))
    assert finished_ms(LocalFiles(tmp_path), 1) == 1_700_000_001_000


@pytest.mark.parametrize("finished", [0, 1])
def test_a_query_with_a_continuous_trigger_must_finish_a_micro_batch_first(finished: int, tmp_path: Path) -> None:
    """Its checkpoint is neither torn nor altered, and restoring a backup would be wrong."""
    spark_has(tmp_path, planned=1, finished=finished)
    (tmp_path / "offsets/1").write_text(CONTINUOUS)
    (tmp_path / "metadata").write_text(json.dumps({"id": QUERY}))
    place = Place(LocalFiles(tmp_path), LocalFiles(tmp_path / "twopc"))
    with pytest.raises(ConfigurationError, match=r"continuous.*Nothing was done\. Start the old query") as refused:
        cutover.find(cutover.Cutover(topics=("enriched",), starts={}), place, SINK)
    assert "Restore" not in str(refused.value)


def test_the_way_out_of_asynchronous_progress_tracking_is_one_that_spark_permits(tmp_path: Path) -> None:
    """Without the option, Spark starts only from two consecutive batches."""
    spark_has(tmp_path, planned=5, finished=5)
    (tmp_path / "offsets/4").unlink()
    with pytest.raises(ConfigurationError, match=r"keep asyncProgressTrackingEnabled.* to 0.* two batches.* remove"):
        cutover.last_batch(LocalFiles(tmp_path))
