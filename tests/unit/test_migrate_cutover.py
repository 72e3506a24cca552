"""A cut-over is run again, after the new query has begun the batch that was handed over."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

import msgspec
import pytest

from twopc.binding import Binding
from twopc.bound import FORMAT, Bound
from twopc.errors import ConfigurationError
from twopc.files import LocalFiles
from twopc.integration.migrate import cutover
from twopc.integration.migrate.deciding import Sinks, UnreadDecisionsError
from twopc.integration.migrate.handover import Bounds, Handovers, Kind
from twopc.integration.migrate.output import Tally
from twopc.integration.migrate.place import Place
from twopc.sinks.kafka import KafkaSink

if TYPE_CHECKING:
    from pathlib import Path

QUERY: Final = "5f3c0a52-ea8b-4a5a-8a5e-0123456789ab"
SINK: Final = KafkaSink(name="orders", bootstrap_servers="127.0.0.1:1", topic="enriched")
WANTED: Final = cutover.Cutover(topics=("enriched",), starts={})


def spark_has(root: Path, *, planned: int, finished: int, offset: int = 0) -> None:
    """Spark has planned and finished batches up to these."""
    for directory, last in (("offsets", planned), ("commits", finished)):
        (root / directory).mkdir(exist_ok=True)
        for number in range(last + 1):
            times = '{"batchWatermarkMs":0,"batchTimestampMs":5}'
            (root / directory / str(number)).write_text(f'v1\n{times}\n{{"in":{{"0":{offset}}}}}')


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Place:
    """Batch 1 is unfinished, and was handed over. Later, the output has two more records."""
    spark_has(tmp_path, planned=1, finished=0)
    (tmp_path / "metadata").write_text(json.dumps({"id": QUERY}))
    ends = iter((4, 6, 6, 6))
    monkeypatch.setattr(cutover, "bounds_of", lambda *_: {0: Bounds(start=0, exact=0, end=next(ends))})
    monkeypatch.setattr(cutover, "tally", lambda *_: Tally())
    place = Place(LocalFiles(tmp_path), LocalFiles(tmp_path / "twopc"))
    cutover.record(cutover.find(WANTED, place, SINK), place)
    return place


def decided(place: Place, monkeypatch: pytest.MonkeyPatch, batch_id: int | None) -> None:
    """The new query has decided a batch. A query binds its sinks before its first decision."""
    facts = {"cluster": "here", "ledger": SINK.ledger}
    Binding(place.own).bind(Bound(format=FORMAT, log=SINK.ledger, log_identity="id", sinks={"orders": facts}), 0)

    def last(query_id: str, sink: KafkaSink, sinks: Any) -> int | None:
        assert (query_id, sink, list(sinks)) == (QUERY, SINK, [SINK])
        return batch_id

    monkeypatch.setattr(cutover, "decided_by", last)
    monkeypatch.setattr(cutover, "sinks_of", lambda *_: Sinks([SINK], []))


def test_a_batch_that_the_new_query_has_decided_cannot_be_handed_over_with_new_bounds(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The new bounds would also contain the new query's own rows, and no replay would be the same again."""
    decided(place, monkeypatch, 1)
    with pytest.raises(ConfigurationError, match=r"Batch 1 .* decided .*Start the new query.*twopc migrate rollback"):
        cutover.find(WANTED, place, SINK)


@pytest.mark.parametrize("finished", [1, 2])
def test_a_batch_after_the_handed_over_one_cannot_be_handed_over_either_once_it_is_decided(
    finished: int, tmp_path: Path, place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The new query has gone on, and was killed. All rows of batch 2 in the output are its own."""
    spark_has(tmp_path, planned=2, finished=finished)
    decided(place, monkeypatch, 2)
    with pytest.raises(ConfigurationError, match=r"Batch 2 .* decided .*Start the new query.*twopc migrate rollback"):
        cutover.find(WANTED, place, SINK)


def test_a_batch_that_was_decided_without_any_hand_over_cannot_be_handed_over(
    tmp_path: Path, place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The query was adopted while it was idle."""
    (tmp_path / "twopc" / "handover-000001.json").unlink()
    decided(place, monkeypatch, 1)
    with pytest.raises(ConfigurationError, match=r"Batch 1 .* decided "):
        cutover.find(WANTED, place, SINK)


def test_an_older_copy_of_the_checkpoint_cannot_be_handed_over(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    """Starting the new query would not help: it would refuse the copy."""
    decided(place, monkeypatch, 4)
    with pytest.raises(ConfigurationError, match=r"decided batch 4, but the checkpoint ends at batch 1.*older copy"):
        cutover.find(WANTED, place, SINK)


def test_nothing_is_handed_over_if_the_decisions_cannot_be_read(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    decided(place, monkeypatch, None)

    def unread(*_: Any) -> None:
        raise UnreadDecisionsError("elsewhere")

    monkeypatch.setattr(cutover, "decided_by", unread)
    with pytest.raises(ConfigurationError, match=r"unknown whether .* decided batch 1.*Nothing was done.*rollback"):
        cutover.find(WANTED, place, SINK)


@pytest.mark.parametrize("last", [None, 0])
def test_a_batch_that_the_new_query_has_not_decided_may_be_handed_over_again(
    last: int | None, place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    decided(place, monkeypatch, last)
    assert cutover.find(WANTED, place, SINK).handover.topics["enriched"][0].end == 6


def test_a_half_written_batch_that_spark_has_planned_again_cannot_be_handed_over(tmp_path: Path, place: Place) -> None:
    """Its old rows are older than the new plan, or belong to the new plan's next batches. Both would be written again."""
    spark_has(tmp_path, planned=1, finished=0, offset=3)
    with pytest.raises(
        ConfigurationError, match=r"planned it again, .*restore offsets/1 .* first plan are {\"in\":{\"0\":0}}"
    ):
        cutover.find(WANTED, place, SINK)
    spark_has(tmp_path, planned=1, finished=1, offset=3)  # the old query has finished the batch
    wanted = replace(WANTED, other_writers=True, old_query_finished=1)
    assert cutover.find(wanted, place, SINK).handover.kind is Kind.NOTHING


@pytest.mark.parametrize(
    ("planned", "finished", "named"), [(2, 1, "batch 1"), (2, 2, "batches 1 to 2"), (4, 3, "batches 1 to 3")]
)
@pytest.mark.parametrize("last", [None, 0])
def test_a_cut_over_does_not_skip_a_half_written_batch_unless_the_user_says_that_the_old_query_has_finished_it(
    last: int | None,
    planned: int,
    finished: int,
    named: str,
    tmp_path: Path,
    place: Place,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The user's function may have caught an error of TakeOver. Nobody would ever write the missing rows of batch 1."""
    spark_has(tmp_path, planned=planned, finished=finished)
    if last is not None:
        decided(place, monkeypatch, last)
    monkeypatch.setattr(cutover, "has_record_since", lambda *_: True)
    wanted = replace(WANTED, other_writers=True)
    files = "numbers above 1 from .* offsets/ .* numbers above 0 from its commits/ .*<number>.crc"
    text = rf"recorded {named} as done, .*--old-query-finished {finished} --apply.*{files}"
    with pytest.raises(ConfigurationError, match=text) as raised:
        cutover.find(wanted, place, SINK)
    assert "state/" not in str(raised.value)
    with pytest.raises(ConfigurationError, match=rf"names batch {finished - 1}, but .* done is batch {finished}"):
        cutover.find(replace(wanted, old_query_finished=finished - 1), place, SINK)
    found = cutover.find(replace(wanted, old_query_finished=finished), place, SINK)
    cutover.record(found, place)
    assert cutover.find(wanted, place, SINK).was_recorded, "the new hand-over says it, too"
    (tmp_path / "commits" / str(planned)).write_text("")
    (tmp_path / "state").mkdir()
    (tmp_path / "state" / "0").write_text("")
    if planned > finished:
        with pytest.raises(
            ConfigurationError, match=rf"recorded batch {planned} as done.* In state/, .* above {planned}, "
        ):
            cutover.find(wanted, place, SINK)


def test_a_cut_over_does_not_skip_a_batch_after_the_new_querys_last_decision(
    tmp_path: Path, place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The command prints ResumeAt, which would accept the gap."""
    spark_has(tmp_path, planned=4, finished=3)
    decided(place, monkeypatch, 2)
    with pytest.raises(ConfigurationError, match=r"recorded batch 3 as done"):
        cutover.find(WANTED, place, SINK)
    (tmp_path / "twopc" / "handover-000001.json").unlink()
    with pytest.raises(ConfigurationError, match=r"recorded batch 3 as done"):
        cutover.find(WANTED, place, SINK)


def test_after_a_rollback_nothing_shows_which_batches_the_old_query_has_written(tmp_path: Path, place: Place) -> None:
    handovers = Handovers(place.own)
    first = handovers.newest()
    assert first is not None
    handovers.add(msgspec.structs.replace(first, is_back=True))
    spark_has(tmp_path, planned=3, finished=3)
    assert cutover.find(replace(WANTED, other_writers=True), place, SINK).handover.batch_id == 3


def test_without_a_decision_the_ledger_is_not_read(place: Place) -> None:
    """So a repeated command needs no permission on the ledger."""
    assert cutover.find(WANTED, place, SINK).handover.topics["enriched"][0].end == 6


def test_a_batch_returned_to_the_old_sink_may_be_handed_over_again(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After a rollback, only the old sink writes."""
    handovers = Handovers(place.own)
    first = handovers.newest()
    assert first is not None
    handovers.add(msgspec.structs.replace(first, is_back=True))
    decided(place, monkeypatch, 1)
    assert cutover.find(WANTED, place, SINK).handover.kind is Kind.REST


def test_a_batch_that_the_new_query_decided_after_a_rollback_without_a_fence_cannot_be_handed_over(
    tmp_path: Path, place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    handovers = Handovers(place.own)
    first = handovers.newest()
    assert first is not None
    handovers.add(msgspec.structs.replace(first, is_back=True, kind=Kind.NOTHING))
    spark_has(tmp_path, planned=2, finished=1)
    decided(place, monkeypatch, 2)
    with pytest.raises(ConfigurationError, match=r"Batch 2 .* decided .*Start the new query"):
        cutover.find(WANTED, place, SINK)


@pytest.mark.parametrize("is_back", [True, False])
def test_a_finished_batch_may_be_handed_over_again_and_the_ledger_is_not_read(
    tmp_path: Path, place: Place, monkeypatch: pytest.MonkeyPatch, *, is_back: bool
) -> None:
    """A rollback and a cut-over followed each other between two batches. Then other records were written to the topic."""
    spark_has(tmp_path, planned=1, finished=1)
    handovers = Handovers(place.own)
    first = handovers.newest()
    assert first is not None
    handovers.add(msgspec.structs.replace(first, kind=Kind.NOTHING, is_back=is_back))
    decided(place, monkeypatch, 1)
    monkeypatch.setattr(cutover, "decided_by", None)
    found = cutover.find(replace(WANTED, other_writers=True), place, SINK).handover
    assert (found.batch_id, found.kind, found.topics["enriched"][0].end) == (1, Kind.NOTHING, 6)


@pytest.mark.parametrize(
    ("before", "now", "records"),
    [
        ('{"in":{"0":2}}', '{"in":{"0":9}}', 7),
        ('{"in":{"0":2}}', '{"in":{"0":9,"1":3}}', 10),  # a new partition begins at 0
        ('{"in":{"0":2}}', '{"in":{"0":9},"new":{"0":4}}', 11),
        (None, '{"in":{"0":9}}', 4),  # Spark keeps the first offset in sources/0/0
        ("-", '{"in":{"0":9}}', None),
        ('{"logOffset":1}', '{"logOffset":2}', None),
        ("17", "18", None),
    ],
)
def test_the_records_of_the_last_batch_are_counted_if_its_sources_are_kafka(
    before: str | None, now: str, records: int | None, tmp_path: Path
) -> None:
    times = '{"batchWatermarkMs":0,"batchTimestampMs":5}'
    for directory in ("offsets", "sources/0"):
        (tmp_path / directory).mkdir(parents=True)
    (tmp_path / "sources/0/0").write_text('\0v1\n{"in":{"0":5}}')
    for number, lines in ((0, [] if before is None else [before]), (1, [now])):
        (tmp_path / "offsets" / str(number)).write_text("\n".join(["v1", times, *lines]))
    assert cutover._source_records(LocalFiles(tmp_path), 1) == records
