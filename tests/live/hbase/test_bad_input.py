"""Bad rows stop the batch before its decision. If a cell turns bad afterwards, the batch is applied once it is fixed."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest

from tests.live.hbase.support import sink_of, unique
from tests.live.one_task import OneTask, apply, batch
from twopc.attempt import Evidence
from twopc.batch import Batch
from twopc.coordinator import Coordinator
from twopc.crash_points import arm, disarm
from twopc.errors import BadRecordError, CommitBlockedError, ConfigurationError, RefusedStartError, SchemaError
from twopc.files import LocalFiles
from twopc.sinks.hbase import HBaseSink
from twopc.sinks.hbase.mappings import COUNTER, Append, Delete, Increment, Mapping, Put
from twopc.sinks.hbase.staging import families
from twopc.testing.contract.drivers import QUERY_ID, Driver

if TYPE_CHECKING:
    from collections.abc import Collection
    from pathlib import Path

    from tests.live.hbase.support import Store

CELL = {"d:v": "v"}
_BAD: list[tuple[Mapping, dict[str, Any], type[Exception], str]] = [
    (Put("bad:{nobody}", CELL), {"v": ["a"]}, SchemaError, "no column 'nobody'"),
    (Put("bad:{id}", {"d:v": "nobody"}), {"id": [1]}, SchemaError, "no column 'nobody'"),
    (Put("bad:{id}", CELL), {"id": [1], "v": [[1, 2]]}, SchemaError, "to_json"),
    (Increment("bad:{id}", CELL), {"id": [1], "v": [1.5]}, SchemaError, "cast it to bigint"),
    (Put("bad:{id}", CELL), {"id": [1, 2], "v": ["a", None]}, BadRecordError, "null in row 1"),
    (Put("bad:{id}", CELL), {"id": [1, None], "v": ["a", "b"]}, BadRecordError, "null in row 1"),
    (
        Put("bad:{id}", CELL),
        {"id": pa.array([0, 2_932_897], pa.date32()), "v": ["a", "b"]},
        BadRecordError,
        "years 1 to 9999 in row 1",
    ),
    (Put("{id}", CELL), {"id": ["a", ""], "v": ["a", "b"]}, BadRecordError, "0 bytes"),
    (Put("{id}", CELL), {"id": ["x" * 32_768], "v": ["a"]}, BadRecordError, "32768 bytes"),
    (Increment("{id}", CELL), {"id": [1], "v": pa.array([2**63], pa.uint64())}, BadRecordError, "64-bit"),
    (Increment("{id}", CELL), {"id": [1, 1], "v": [2**62, 2**62]}, BadRecordError, "not fit in 64 bits"),
    (Delete("bad:{nobody}"), {"id": [1]}, SchemaError, "no column 'nobody'"),
    (Delete("bad:{id}"), {"id": [1, None]}, BadRecordError, "null in row 1"),
    (Delete("{id}", ["d:v"]), {"id": ["a", ""]}, BadRecordError, "0 bytes"),
    (Append("{id}", CELL), {"id": [1], "v": [b"x" * 10_000_001]}, BadRecordError, "keyvalue.maxsize"),
]


@pytest.mark.parametrize(("mapping", "columns", "error", "words"), _BAD)
def test_a_row_that_hbase_cannot_store_stops_the_task(
    mapping: Mapping, columns: dict[str, Any], error: type[Exception], words: str, store: Store
) -> None:
    sink = sink_of(store, mapping)
    with pytest.raises(error, match=words):
        sink.check_rows(batch(**columns))
    driver = Driver(sink)
    driver.begin()
    with pytest.raises(error, match=words):
        driver.prepare(batch(**columns))


def test_hbase_accepts_the_largest_row_that_the_sink_accepts(store: Store) -> None:
    sink = sink_of(store, Put(f"{store.prefix}:{{id}}", CELL))
    assert apply(sink, batch(id=[1], v=["x" * 9_999_800])) == [Evidence.COMMITTED]
    assert len(store.value(1) or b"") == 9_999_800


def test_a_chunk_of_small_rows_may_be_larger_than_the_largest_cell(store: Store) -> None:
    """It is staged in several cells. The cluster's limit may be lower than a chunk, whose size the user did not choose."""
    sink = sink_of(store, Put(f"{store.prefix}:{{id}}", CELL), max_cell_bytes=1_000)
    assert apply(sink, batch(id=list(range(20)), v=["x" * 100] * 20)) == [Evidence.COMMITTED]
    assert [store.value(number) for number in range(20)] == [b"x" * 100] * 20


@pytest.mark.parametrize(
    ("held", "words"), [(b"text", "not a counter"), (COUNTER.pack(2**63 - 1), "not fit in 64 bits")]
)
def test_a_cell_that_is_not_a_counter_stops_the_batch_before_its_decision(
    held: bytes, words: str, store: Store
) -> None:
    store.write(2, held, at_ms=1)
    sink = sink_of(store, Increment(f"{store.prefix}:{{id}}", CELL))
    with pytest.raises(BadRecordError, match=rf"{store.prefix}:2.*d:v.*{words}"):
        apply(sink, batch(id=[1, 2], v=[1, 1]))
    assert store.value(1) is None


@pytest.mark.parametrize(
    ("held", "tasks"),
    [
        (0, [[2**62, 2**62 - 1, 1]]),  # in three chunks of one task
        (0, [[2**62], [2**62]]),  # in two tasks
        (-1, [[-(2**62)], [-(2**62)]]),
        (2**63 - 2, [[1, 1]]),
    ],
)
def test_a_batch_that_would_overflow_a_counter_stops_before_its_decision(
    held: int, tasks: list[list[int]], store: Store
) -> None:
    """HBase itself would continue with a number of the opposite sign."""
    store.write(1, COUNTER.pack(held), at_ms=1)
    sink = sink_of(store, Increment(f"{store.prefix}:{{id}}", CELL), chunk_rows=1)
    with pytest.raises(BadRecordError, match=rf"{store.prefix}:1.*d:v.*not fit in 64 bits"):
        apply(sink, *(batch(id=[1] * len(steps), v=steps) for steps in tasks))
    assert store.total(1) == held


@pytest.mark.parametrize(
    ("held", "steps"), [(0, [2**62, 2**62 - 1]), (-(2**63), [2**62, 2**62, 5]), (2**63 - 3, [1, 1])]
)
def test_counters_may_reach_their_limit(held: int, steps: list[int], store: Store) -> None:
    store.write(1, COUNTER.pack(held), at_ms=1)
    sink = sink_of(store, Increment(f"{store.prefix}:{{id}}", CELL), chunk_rows=1)
    assert apply(sink, batch(id=[1] * len(steps), v=steps)) == [Evidence.COMMITTED]
    assert store.total(1) == held + sum(steps)


def test_a_counter_raised_to_its_limit_after_the_check_blocks_the_commit_and_does_not_overflow(store: Store) -> None:
    store.write(1, COUNTER.pack(1), at_ms=1)
    driver = Driver(sink_of(store, Increment(f"{store.prefix}:{{id}}", CELL)))
    scan_start = driver.begin()
    handle = driver.prepare(batch(id=[1], v=[1]))
    driver.committer.confirm([handle], 0)
    store.write(1, COUNTER.pack(2**63 - 1), at_ms=2)
    assert driver.committer.commit([handle], scan_start) == {handle: Evidence.UNKNOWN}
    [blocker] = driver.committer.blockers()
    assert "not fit in 64 bits. Another client has changed this cell since the batch was checked" in blocker
    assert store.total(1) == 2**63 - 1
    store.write(1, COUNTER.pack(5), at_ms=3)
    assert driver.committer.commit([handle], scan_start) == {handle: Evidence.COMMITTED}
    assert store.total(1) == 6


@pytest.mark.parametrize(("held", "tasks"), [(9_999_000, [[2_000]]), (4_000_000, [[3_000_000], [3_000_000]])])
def test_a_cell_that_would_grow_too_large_through_appends_stops_the_batch_before_its_decision(
    held: int, tasks: list[list[int]], store: Store
) -> None:
    store.write(1, b"x" * held, at_ms=1)
    sink = sink_of(store, Append(f"{store.prefix}:{{id}}", CELL), chunk_rows=1)
    with pytest.raises(BadRecordError, match=rf"{store.prefix}:1.*d:v.*would grow to \d+ bytes.*max_cell_bytes"):
        apply(sink, *(batch(id=[1] * len(sizes), v=["y" * size for size in sizes]) for sizes in tasks))
    assert len(store.value(1) or b"") == held


def test_many_large_appends_to_different_rows_are_not_mistaken_for_appends_to_one_cell(store: Store) -> None:
    sink = sink_of(store, Append(f"{store.prefix}:{{id}}", CELL), chunk_rows=1)
    assert apply(sink, batch(id=[1, 2, 3, 1], v=["y" * 4_000_000] * 4)) == [Evidence.COMMITTED]
    assert [len(store.value(row) or b"") for row in (1, 2, 3)] == [8_000_000, 4_000_000, 4_000_000]


def test_a_missing_table_is_reported(store: Store) -> None:
    with pytest.raises(ConfigurationError, match="table 'nowhere' does not exist"):
        Driver(sink_of(store, Put("{id}", CELL), table="nowhere"))


def test_a_missing_namespace_of_the_sinks_own_table_is_reported(store: Store) -> None:
    with pytest.raises(ConfigurationError, match=r"NamespaceNotFound.*nowhere.*Create the namespace"):
        Driver(sink_of(store, Put("{id}", CELL), staging_table="nowhere:twopc"))


@pytest.mark.parametrize("mapping", [Put("{id}", {"zz:v": "v"}), Delete("{id}", ["d:v", "zz:v"])])
def test_a_missing_family_is_reported(mapping: Mapping, store: Store) -> None:
    with pytest.raises(ConfigurationError, match="has no column family 'zz'"):
        Driver(sink_of(store, mapping))


def test_a_family_whose_ttl_would_expire_markers_is_refused(store: Store) -> None:
    table = f"ttl-{unique()}"
    store.create_table(table, ttl_s=3600)
    with pytest.raises(ConfigurationError, match=r"'d' of .* has a TTL"):
        Driver(sink_of(store, Increment("{id}", CELL), table=table))
    for mapping in (Put("{id}", CELL), Delete("{id}", ["d:v"])):
        Driver(sink_of(store, mapping, table=table))


def test_the_durability_of_a_table_is_read(store: Store) -> None:
    tables = {durability: f"{durability.decode()}-{unique()}" for durability in (b"FSYNC_WAL", b"ASYNC_WAL")}
    for durability, table in tables.items():
        store.create_table(table, durability=durability, families=families())
        sink = sink_of(store, Put("{id}", CELL), table=table)
        committer: Any = Driver(sink).committer
        assert committer._client.synced == {sink.staging_table, *([table] if durability == b"FSYNC_WAL" else [])}
        assert apply(sink, batch(id=[1], v=["a"])) == [Evidence.COMMITTED]
    with pytest.raises(ConfigurationError, match="has the durability SKIP_WAL or ASYNC_WAL"):
        Driver(sink_of(store, Put("{id}", CELL), staging_table=tables[b"ASYNC_WAL"]))


def test_a_cell_that_becomes_invalid_after_the_decision_blocks_the_commit_until_it_is_fixed(
    store: Store, tmp_path: Path
) -> None:
    sink = sink_of(store, Increment(f"{store.prefix}:{{id}}", CELL), chunk_rows=3)
    rows = batch(id=[1, 1, 2, 3, 2, 1, 1], v=[1] * 7)
    batch_0 = Batch("query-a", 0, ("0",), lambda _: ("0",))
    arm("driver.decided", lambda: store.write(2, b"in the way", at_ms=1))
    engine = OneTask(sink, rows)
    with pytest.raises(CommitBlockedError, match=rf"{store.prefix}:2.*not a counter.*Another client"):
        Coordinator([sink], LocalFiles(tmp_path)).process(batch_0, engine)
    disarm()
    with pytest.raises(CommitBlockedError):
        Coordinator([sink], LocalFiles(tmp_path)).process(batch_0, engine)
    store.write(2, COUNTER.pack(10), at_ms=2)
    Coordinator([sink], LocalFiles(tmp_path)).process(batch_0, engine)
    assert [store.total(number) for number in (1, 2, 3)] == [4, 12, 1]


def test_a_sink_of_another_query_is_refused(store: Store, tmp_path: Path) -> None:
    sink = sink_of(store, Put(f"{store.prefix}:{{id}}", CELL))
    Driver(sink)
    place = Batch("query-b", 0, ("0",), lambda _: ("0",))
    with pytest.raises(RefusedStartError, match=QUERY_ID):
        Coordinator([sink], LocalFiles(tmp_path)).process(place, OneTask(sink, batch(id=[1], v=["a"])))


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"name": "a.b"}, "name='a.b'"),
        ({"zookeeper": "nowhere"}, "host:port"),
        ({"znode": "hbase"}, "znode='hbase'"),
        ({"znode": "/hbase/"}, "znode='/hbase/'"),
        ({"table": "a b"}, "table='a b'"),
        ({"table": "twopc"}, "staging table must not be the data table"),
        ({"mapping": "Put"}, "mapping='Put'"),
        ({"chunk_rows": 0}, "chunk_rows=0"),
    ],
)
def test_an_invalid_argument_is_rejected_with_an_error_that_identifies_it(
    arguments: dict[str, Any], words: str
) -> None:
    with pytest.raises(ConfigurationError, match=words):
        HBaseSink(**{"name": "a", "zookeeper": "h:1", "table": "t", "mapping": Put("{id}", CELL), **arguments})


@pytest.mark.parametrize("cells", [{}, {"v": "v"}, {"d:": "v"}])
def test_a_cell_without_family_or_qualifier_is_refused(cells: dict[str, str]) -> None:
    with pytest.raises(ConfigurationError, match="family:qualifier"):
        Put("{id}", cells)


@pytest.mark.parametrize("cells", [["v"], ["d:"], "d:v"])
def test_a_deletion_without_family_or_qualifier_is_refused(cells: Collection[str]) -> None:
    with pytest.raises(ConfigurationError, match="family:qualifier"):
        Delete("{id}", cells)
