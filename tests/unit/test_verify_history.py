"""Reading a decision log batch by batch, its source offsets, and the checkpoint."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import msgspec
import pytest

from tests.unit.test_log_view import ACQUIRE, BEGIN, decision, repair, task, truncation
from twopc.errors import ConfigurationError
from twopc.files import LocalFiles
from twopc.integration.verify.checkpoint import check_checkpoint, finished_batches, initial_offsets
from twopc.integration.verify.findings import Kind
from twopc.integration.verify.history import Batch, BatchId, History, history_of
from twopc.integration.verify.sources import check_sources, ranges, records_between
from twopc.records import Begin, LogContents, LogEntry
from twopc.sealed import with_check

if TYPE_CHECKING:
    from pathlib import Path

    from twopc.records import Record


def history(*records: Record, start: int = 0) -> History:
    contents = LogContents(start, tuple(LogEntry(start + i, record) for i, record in enumerate(records)))
    return history_of(contents, contents)


def batch(number: int, end: int, rows: int, prior: tuple[str, ...] | None) -> tuple[BatchId, Batch]:
    made = decision(number, *(task(i) for i in range(rows)))
    return BatchId("a", number), Batch(msgspec.structs.replace(made, offsets=(at(end),)), prior)


def at(end: int) -> str:
    return f'{{"t":{{"0":{end},"1":5}}}}'


def test_every_batch_has_the_offsets_of_the_previous_batch() -> None:
    found = history(ACQUIRE, BEGIN, decision(0), ACQUIRE, decision(1))
    assert [(key, batch.prior) for key, batch in found.batches.items()] == [
        (BatchId("a", 0), None),
        (BatchId("a", 1), ("a0",)),
    ]
    assert (found.last, sorted(found.acquisitions), found.is_complete) == (BatchId("a", 1), [0, 3], True)


def test_a_repair_replaces_its_listed_handles_and_a_rewrite_replaces_all_of_them() -> None:
    found = history(
        BEGIN,
        decision(0, task(0, s="t0"), task(1, s="t1")),
        repair(0, task(1, s="t1-again")),
        decision(1, task(0, s="u0")),
        decision(1, task(0, s="u0-again"), plan="rewrite"),
    )
    first, second = found.batches.values()
    assert list(first.handles("s")) == [(0, {"t": "t0"}), (1, {"t": "t1-again"})]
    assert (first.superseded, first.repairs, first.rewrites) == ([{"s": {"t": "t1"}}], 1, 0)
    assert list(second.handles("s")) == [(0, {"t": "u0-again"})]
    assert (second.superseded, second.repairs, second.rewrites) == ([{"s": {"t": "u0"}}], 0, 1)


def test_an_abandoned_batch_is_marked_as_such_and_the_next_one_follows_it() -> None:
    begin = Begin(query_id="a", first_batch=1, prior_offsets=("a0",), abandons=True)
    found = history(BEGIN, decision(0, task(0, s="t")), begin, decision(1))
    assert [(batch.abandoned, batch.prior) for batch in found.batches.values()] == [(True, None), (False, ("a0",))]
    assert (
        history(BEGIN, decision(0), Begin(query_id="b", first_batch=0, prior_offsets=(), ends="a"))
        .batches[BatchId("a", 0)]
        .abandoned
        is False
    )


def test_a_truncated_ledger_is_not_complete() -> None:
    found = history(decision(3), decision(4), truncation(3), start=3)
    assert (found.is_complete, found.view.damage, len(found.batches)) == (False, None, 2)


def test_a_new_query_begins_another_history_with_the_same_batch_numbers() -> None:
    other = Begin(query_id="b", first_batch=0, prior_offsets=(), ends="a")
    found = history(BEGIN, decision(0), other, decision(0, query_id="b"))
    assert list(found.batches) == [BatchId("a", 0), BatchId("b", 0)]


def test_the_history_of_a_damaged_log_ends_at_the_damage() -> None:
    found = history(BEGIN, decision(0), decision(2), decision(3))
    assert found.view.damage is not None
    assert list(found.batches) == [BatchId("a", 0)]


@pytest.mark.parametrize(
    ("prior", "offsets", "records"),
    [
        ((at(2),), (at(9),), 7),
        ((at(2), at(0)), (at(3), at(4)), 5),
        (('{"t":{"0":1}}',), (at(2),), None),  # a new partition: its first offset is unknown
        (('{"logOffset":1}',), ('{"logOffset":2}',), None),
        (("no JSON",), (at(2),), None),
        (("-",), ("-",), None),
    ],
)
def test_source_records_are_counted_if_every_source_is_kafka(
    prior: tuple[str, ...], offsets: tuple[str, ...], records: int | None
) -> None:
    assert records_between(prior, offsets) == records


def test_decreasing_offsets_and_ranges_that_differ_from_the_rows_are_found() -> None:
    batches = dict([batch(0, 3, 3, None), batch(1, 5, 1, (at(3),)), batch(2, 4, 0, (at(5),))])
    found = list(check_sources(batches, {}, one_to_one=True))
    assert [(one.kind, one.where) for one in found] == [
        (Kind.RANGE_DIFFERS, "batch 1"),
        (Kind.OFFSETS_RAN_BACK, "batch 2"),
        (Kind.RANGE_DIFFERS, "batch 2"),
        (Kind.NOT_COMPARED, "batches 0"),
    ]
    assert not list(check_sources(dict([batch(0, 3, 3, None)]), {"a": (at(0),)}, one_to_one=True))
    assert not list(check_sources(dict([batch(0, 3, 9, None)]), {}, one_to_one=False))
    # The decision before batch 4 is truncated, so the batch's own start is unknown.
    (found_of_kept,) = check_sources(dict([batch(4, 3, 1, None)]), {"a": (at(0),)}, one_to_one=True)
    assert (found_of_kept.kind, found_of_kept.where) == (Kind.NOT_COMPARED, "batches 4")


def test_a_checkpoints_initial_offsets_apply_only_to_its_own_query() -> None:
    (_, old), (_, new) = batch(0, 3, 3, None), batch(0, 9, 4, None)
    batches = {BatchId("a", 0): old, BatchId("b", 0): new}
    assert not list(check_sources(batches, {"b": (at(5),)}, one_to_one=False))
    (found,) = check_sources(batches, {"a": (at(5),)}, one_to_one=False)
    assert found.kind is Kind.OFFSETS_RAN_BACK


@pytest.mark.parametrize(("numbers", "text"), [([4], "4"), ([1, 2, 3, 7, 9, 10], "1-3, 7, 9-10")])
def test_ascending_numbers_are_formatted_as_ranges(numbers: list[int], text: str) -> None:
    assert ranges(numbers) == text


@pytest.fixture
def checkpoint(tmp_path: Path) -> Path:
    for directory in ("offsets", "commits", "sources/0"):
        (tmp_path / directory).mkdir(parents=True)
    (tmp_path / "metadata").write_text('{"id":"a"}')
    for number in range(3):
        (tmp_path / f"offsets/{number}").write_text(f"v1\n{{}}\na{number}")
        (tmp_path / f"commits/{number}").write_text("v1\n{}")
    return tmp_path


def compared(path: Path, *records: Record) -> list[tuple[Kind, str]]:
    files = LocalFiles(path)
    found = check_checkpoint(files, finished_batches(files), history(BEGIN, *records), "ledger")
    return [(one.kind, one.where) for one in found]


THREE = (decision(0), decision(1), decision(2))


def test_a_checkpoint_with_the_same_batches_has_no_findings(checkpoint: Path) -> None:
    assert compared(checkpoint, *THREE) == []
    (checkpoint / "commits/2").unlink()  # the query was killed before Spark wrote it
    assert compared(checkpoint, *THREE) == []


def test_missing_checkpoint_files_are_found(checkpoint: Path) -> None:
    (checkpoint / "commits/1").unlink()
    (checkpoint / "offsets/2").unlink()
    assert compared(checkpoint, *THREE) == [(Kind.OFFSETS_MISSING, "batches 2"), (Kind.COMMIT_MISSING, "batches 1")]


def test_old_files_deleted_by_spark_are_not_reported(checkpoint: Path) -> None:
    (checkpoint / "commits/0").unlink()
    (checkpoint / "offsets/0").unlink()
    assert compared(checkpoint, *THREE) == []


def test_finished_batches_without_a_decision_are_an_error(checkpoint: Path) -> None:
    assert compared(checkpoint, decision(0)) == [(Kind.COMMITTED_UNDECIDED, "batches 1-2")]


def test_different_offsets_for_the_same_batch_are_an_error(checkpoint: Path) -> None:
    (checkpoint / "offsets/1").write_text("v1\n{}\nother")
    assert compared(checkpoint, *THREE) == [(Kind.OFFSETS_DIFFER, "batch 1")]


def test_the_checkpoint_of_another_query_or_ledger_is_an_error(checkpoint: Path) -> None:
    (checkpoint / "metadata").write_text('{"id":"z"}')
    (checkpoint / "twopc").mkdir()
    bound = {"format": 1, "log": "other-ledger", "log_identity": "i", "sinks": {}}
    (checkpoint / "twopc/binding-000001.json").write_bytes(with_check(json.dumps(bound).encode()))
    assert [kind for kind, _ in compared(checkpoint, *THREE)] == [Kind.QUERY_DIFFERS, Kind.BINDING_DIFFERS]


def test_a_directory_without_a_checkpoint_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="not the checkpoint of a streaming query"):
        compared(tmp_path, *THREE)


def read_all(checkpoint: Path) -> None:
    initial_offsets(LocalFiles(checkpoint))
    compared(checkpoint, *THREE)


@pytest.mark.parametrize(
    ("name", "torn"),
    [
        *[("metadata", torn) for torn in (b"", b'{"id":', b"[]", b"{}", b"\xff")],
        *[("offsets/1", torn) for torn in (b"v1\n{}\n\xff", b'v1\n{}\n{"logOffset":null}')],
        *[("sources/0/0", torn) for torn in (b'\0v1\n{"in":', b"\0v1\n\xff")],
    ],
)
def test_a_torn_checkpoint_file_is_reported(checkpoint: Path, name: str, torn: bytes) -> None:
    (checkpoint / name).write_bytes(torn)
    with pytest.raises(ConfigurationError, match=f"{checkpoint}/{name} cannot be read .*backup"):
        read_all(checkpoint)


@pytest.mark.parametrize("name", ["metadata", "offsets/0", "sources/0/0", "commits"])
def test_an_unreadable_checkpoint_is_refused_and_the_error_names_the_file(checkpoint: Path, name: str) -> None:
    path = checkpoint / name
    if path.is_dir():
        path.rename(checkpoint / "elsewhere")
        path.write_text("a file")
    else:
        path.unlink(missing_ok=True)
        path.mkdir()
    with pytest.raises(ConfigurationError, match=f"cannot be read .*{path}"):
        read_all(checkpoint)


@pytest.mark.parametrize(
    ("written", "found"),
    [(b'\0v1\n{"t": {"1": 0, "0": 2}}', {"a": ('{"t":{"0":2,"1":0}}',)}), (b"v1\n{}", {}), (b"", {})],
)
def test_the_initial_offsets_of_a_kafka_source_are_read_from_the_checkpoint(
    checkpoint: Path, written: bytes, found: dict[str, tuple[str, ...]]
) -> None:
    (checkpoint / "sources/0/0").write_bytes(written)
    assert initial_offsets(LocalFiles(checkpoint)) == found
