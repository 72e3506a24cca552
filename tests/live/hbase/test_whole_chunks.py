"""A chunk that is sent in one call leaves exactly the cells that its rows leave if they are sent one by one."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest

from tests.arrow_rows import KINDS, sliced, texts
from tests.live.hbase.support import FAMILY, lose_answers, sink_of, until
from tests.live.one_task import apply, batch
from twopc.attempt import Evidence
from twopc.sinks.hbase.client import HBaseClient
from twopc.sinks.hbase.connection import RegionServer
from twopc.sinks.hbase.mappings import Delete, Mapping, Put
from twopc.sinks.hbase.messages import client_pb, region
from twopc.sinks.hbase.row_ops import put

if TYPE_CHECKING:
    from tests.live.hbase.support import Store

_ROWS = 60


@pytest.fixture
def sent_whole(monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """Whether each chunk went in one call."""
    found: list[bool] = []
    send_whole = HBaseClient.send_whole

    def noted(self: HBaseClient, *arguments: Any) -> bool:
        found.append(send_whole(self, *arguments))
        return found[-1]

    monkeypatch.setattr(HBaseClient, "send_whole", noted)
    return found


def chunk_of(store: Store, cells: dict[int, bytes]) -> Any:
    """A chunk of rows, each with a cell of a family."""
    actions = [
        client_pb.Action(mutation=put(store.row(name), {(family, b"v"): b"here"}, at_ms=1))
        for name, family in cells.items()
    ]
    return client_pb.RegionAction(region=region(b""), action=actions)


def split_of(store: Store) -> Store:
    """The same store with a table whose rows from 3 on are in another region."""
    other = store.renamed()
    other.table = f"whole-{other.prefix}"
    other.create_table()
    until(lambda: bool(other.region_of(other.row(3))))
    before = other.region_of(other.row(3))
    other.split(other.row(3))
    until(
        lambda: (
            other.region_of(other.row(3)) not in {b"", before} and other.region_of(other.row(1)) not in {b"", before}
        )
    )
    return other


@pytest.mark.parametrize("kind", ["string", "binary", "dictionary"])
def test_random_rows_produce_the_cells_that_their_values_specify(
    kind: str, store: Store, sent_whole: list[bool]
) -> None:
    chance = random.Random(kind)
    names = chance.sample(range(1_000), _ROWS)
    values = texts(chance, _ROWS, nulls=0)
    values[0] = "ä".encode() * 600_000  # fills a chunk by itself
    numbers = [chance.randrange(-(2**62), 2**62) for _ in names]
    rows = batch(
        id=names,
        first=["here"] * _ROWS,
        v=sliced(chance, KINDS[kind](values)),
        n=pa.array(numbers, pa.int64()),
    )
    mapping = Put(f"{store.prefix}:{{id}}", {"d:first": "first", "d:v": "v", "d:n": "n"})
    assert apply(sink_of(store, mapping, chunk_rows=25), rows) == [Evidence.COMMITTED]
    found = {row: {name: cell.value for (_, name), cell in cells.items()} for row, cells in store.all_cells().items()}
    assert found == {
        store.row(name): {b"first": b"here", b"v": value, b"n": b"%d" % number}
        for name, value, number in zip(names, values, numbers, strict=True)
    }
    assert len(sent_whole) > 3
    assert all(sent_whole)


@pytest.mark.parametrize("mapping", [Put, Delete])
def test_all_rows_of_a_chunk_are_applied_even_if_they_are_in_two_regions(
    mapping: type[Mapping], store: Store, sent_whole: list[bool]
) -> None:
    split = split_of(store)
    rows = batch(id=[1, 2, 3, 4], v=["a", "b", "c", "d"])
    for name in (1, 2, 3, 4):
        split.write(name, b"before", at_ms=1)
    made = Put(f"{split.prefix}:{{id}}", {"d:v": "v"}) if mapping is Put else Delete(f"{split.prefix}:{{id}}")
    assert apply(sink_of(split, made), rows) == [Evidence.COMMITTED]
    expected = [b"a", b"b", b"c", b"d"] if mapping is Put else [None] * 4
    assert [split.value(name) for name in (1, 2, 3, 4)] == expected
    assert sent_whole == [False]


def test_a_chunk_is_not_applied_whole_if_a_row_has_moved_to_another_region(store: Store) -> None:
    split = split_of(store)
    last = split.cluster.region_of(split.table, split.row(4))
    split.cluster._regions[split.table] = [last._replace(start=b"")]  # as if the region had not been split
    assert not split.client.send_whole(split.table, chunk_of(split, {1: FAMILY, 4: FAMILY}))


def test_rows_are_put_once_even_if_any_response_is_lost(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    lose_answers(monkeypatch, RegionServer)
    sink = sink_of(store, Put(f"{store.prefix}:{{id}}", {"d:v": "v"}), chunk_rows=2)
    assert apply(sink, batch(id=list(range(20)), v=[str(number) for number in range(20)])) == [Evidence.COMMITTED]
    assert [store.value(number) for number in range(20)] == [b"%d" % number for number in range(20)]


def test_a_chunk_counts_as_applied_whole_only_if_every_row_took_effect(store: Store) -> None:
    client = store.client
    assert client.send_whole(store.table, chunk_of(store, {1: FAMILY, 2: FAMILY}))
    assert not client.send_whole(store.table, chunk_of(store, {3: FAMILY, 4: b"absent"}))
    assert not client.send_whole("absent", chunk_of(store, {5: FAMILY}))
    assert [store.value(number) for number in (1, 2, 3)] == [b"here"] * 3


def test_a_chunk_above_the_limits_of_a_call_is_not_sent_whole(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    chunk = chunk_of(store, {1: FAMILY, 2: FAMILY})
    for limits in ((1, 1_000_000), (1_000, 50)):
        monkeypatch.setattr(HBaseClient, "limits", limits)
        assert not store.client.send_whole(store.table, chunk)
    assert store.value(1) is None
