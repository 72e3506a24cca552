"""A decided batch is in a Delta table once: the cases that need its pointer, its log, or its definition."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any

import msgspec
import pyarrow as pa
import pytest
from deltalake import CommitProperties, DeltaTable, Field, QueryBuilder, Schema, Transaction, write_deltalake
from deltalake.exceptions import CommitFailedError, DeltaError
from deltalake.schema import ArrayType, PrimitiveType, StructType

from tests.unit.delta_support import APP, Shop, next_commits
from tests.unit.lake_support import evidence, prepare
from twopc import ConfigurationError, FencedError
from twopc.attempt import Claim, Evidence
from twopc.sinks.delta.record import Record, next_pointer, write_record
from twopc.sinks.lake.published import Published
from twopc.testing import crash_points
from twopc.testing.contract.drivers import Driver, close_opened

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

COMMITTED, ABORTED, UNKNOWN = Evidence.COMMITTED, Evidence.ABORTED, Evidence.UNKNOWN


@pytest.fixture
def shop(tmp_path: Path) -> Iterator[Shop]:
    yield Shop(tmp_path)
    close_opened()


# -- undocumented behaviour of deltalake that the sink relies on -------------------------------------------------------


def set_app_version(table: DeltaTable, version: int) -> None:
    properties = CommitProperties(app_transactions=[Transaction(APP, version)])
    table.create_write_transaction([], "append", table.schema(), commit_properties=properties)


def test_deltalake_refuses_a_commit_if_a_later_version_has_set_the_same_app_id(shop: Shop) -> None:
    stale = shop.table()
    set_app_version(shop.table(), 1)
    shop.append(9)
    for version in (1, 2):
        with pytest.raises(CommitFailedError, match="Concurrent transaction failed"):
            set_app_version(stale, version)


def test_deltalake_does_not_compare_the_numbers_of_an_app_id(shop: Shop) -> None:
    """So the sink must commit with the same table object that it has examined."""
    for version in (2, 2, 1):
        set_app_version(shop.table(), version)
    assert shop.commits() == 3


def test_deltalake_refuses_a_commit_if_the_concurrent_commits_are_no_longer_in_the_log(shop: Shop) -> None:
    shop.append(9)
    stale = shop.table()
    set_app_version(shop.table(), 1)
    shop.append(9)
    shop.table().create_checkpoint()
    for version in range(shop.commits()):
        (shop.path / "_delta_log" / f"{version:020}.json").unlink()
    shop.append(9)
    with pytest.raises(DeltaError):
        set_app_version(stale, 1)
    assert shop.pointer() == 1


# -- one commit a batch ------------------------------------------------------------------------------------------------


def test_a_batch_adds_one_table_version_and_a_start_adds_another(shop: Shop) -> None:
    driver = Driver(shop.sink)
    assert shop.commits() == 1
    for batch in range(3):
        scan_start = driver.begin()
        handles = [prepare(driver, shop.sink, batch, batch=batch, attempt=batch) for _ in range(2)]
        assert driver.commit(handles, scan_start) == [COMMITTED, COMMITTED]
        driver.committer.recover_and_abort(handles)
        driver.committer.forget(scan_start)
        assert shop.commits() == 2 + batch
    Driver(shop.sink)
    assert shop.commits() == 5
    assert shop.values() == [0, 0, 1, 1, 2, 2]
    assert len(shop.records()) == 2, "each record should be deleted at the second commit after it"


def test_the_history_mentions_the_sink_and_the_batch(shop: Shop) -> None:
    driver = Driver(shop.sink)
    scan_start = driver.begin()
    driver.commit([prepare(driver, shop.sink, 1, 2, batch=7)], scan_start)
    [newest] = shop.table().history(1)
    assert (newest["twopc.sink"], newest["twopc.batch"], newest["isBlindAppend"]) == ("orders", 7, True)


def test_a_tables_pointer_only_increases(shop: Shop) -> None:
    seen = []
    for _ in range(3):
        driver = Driver(shop.sink)
        seen.append(shop.pointer() or 0)
        driver.commit([prepare(driver, shop.sink, 1)], driver.begin())
        seen.append(shop.pointer() or 0)
    assert seen == sorted(set(seen))


# -- lost responses and late commits -------------------------------------------------------------------------------------


def test_a_start_deletes_the_record_of_a_commit_that_a_successor_refused(shop: Shop) -> None:
    loser = Driver(shop.sink)
    scan_start = loser.begin()
    handle = prepare(loser, shop.sink, 1, 2)

    def overtaken(send: Callable[[], None]) -> None:
        Driver(shop.sink)
        send()

    with next_commits(overtaken), pytest.raises(FencedError):
        loser.committer.commit([handle], scan_start)
    for left in (3, 3, 2):  # the refused commit's record is as old as that of the successor's start
        assert len(shop.records()) == left
        Driver(shop.sink)


def test_a_driver_replaced_between_its_check_and_its_commit_adds_nothing(shop: Shop) -> None:
    """Whoever loads the table again to commit would find the other driver's pointer there, and replace it."""
    loser = Driver(shop.sink)
    scan_start = loser.begin()
    handle = prepare(loser, shop.sink, 1, 2)

    def overtake() -> None:
        assert Driver(shop.sink).committer.initialize_state([handle], scan_start) == {handle: COMMITTED}

    crash_points.arm("driver.committing", overtake)
    try:
        with pytest.raises(FencedError):
            loser.committer.commit([handle], scan_start)
    finally:
        crash_points.disarm()
    assert shop.values() == [1, 2]


def test_starts_of_a_blocked_batch_leave_no_records(shop: Shop) -> None:
    driver = Driver(shop.sink)
    scan_start = driver.begin()
    handle = prepare(driver, shop.sink, 1)
    shop.table().alter.add_constraint({"positive": "value > 0"})
    before = shop.records()
    for _ in range(2):
        assert evidence(driver, [handle], scan_start) == [UNKNOWN]
    assert shop.records() == before


def test_a_start_deletes_the_records_of_failed_steps(shop: Shop) -> None:
    Driver(shop.sink)
    failed = Record(pointer=next_pointer(None), control=msgspec.Raw(b"null"), published=Published())
    write_record(shop.sink.store(), "orders", failed)
    for left in (3, 2, 2):  # the failed step's record is as old as that of the first start
        Driver(shop.sink)
        assert len(shop.records()) == left


# -- several drivers ---------------------------------------------------------------------------------------------------


def test_only_one_of_many_drivers_that_start_at_once_acquires_the_sink(shop: Shop) -> None:
    committers = [shop.sink.create_committer() for _ in range(5)]
    seen = [committer.inspect() for committer in committers]
    won: list[int] = []

    def start(number: int) -> None:
        try:
            won.append(committers[number].acquire(Claim("query-a", f"run {number}", "registers"), seen[number]))
        except FencedError:
            """One of the others was faster."""

    threads = [threading.Thread(target=start, args=(number,)) for number in range(len(committers))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert won == [1]


# -- concurrent changes by others --------------------------------------------------------------------------------------


def _compact(shop: Shop) -> None:
    shop.append(8)
    shop.append(9)
    shop.table().optimize.compact()


def _delete(shop: Shop) -> None:
    shop.append(8, 9, 10)
    shop.table().delete("value = 10")


@pytest.mark.parametrize("meanwhile", [_compact, _delete], ids=["optimize", "delete"])
def test_maintenance_in_between_costs_at_most_one_more_attempt(shop: Shop, meanwhile: Callable[[Shop], None]) -> None:
    driver = Driver(shop.sink)
    scan_start = driver.begin()
    handle = prepare(driver, shop.sink, 1, 2)

    def overtaken(send: Callable[[], None]) -> None:
        meanwhile(shop)
        send()

    with next_commits(overtaken):
        assert evidence(driver, [handle], scan_start) == [COMMITTED]
    assert shop.values() == [1, 2, 8, 9]


def test_the_evidence_survives_checkpoints_and_the_cleanup_of_the_log(tmp_path: Path) -> None:
    shop = Shop(tmp_path, configuration={"delta.logRetentionDuration": "interval 0 days"})
    driver = Driver(shop.sink)
    scan_start = driver.begin()
    handle = prepare(driver, shop.sink, 1, 2)
    driver.commit([handle], scan_start)
    shop.append(9)
    shop.table().create_checkpoint()
    for version in range(shop.commits()):  # as cleanup_metadata does when a day has passed
        (shop.path / "_delta_log" / f"{version:020}.json").unlink()
    restarted = Driver(shop.sink)
    assert restarted.committer.initialize_state([handle], scan_start) == {handle: COMMITTED}
    assert shop.values() == [1, 2, 9]
    close_opened()


def test_the_evidence_survives_the_rewriting_of_all_files(shop: Shop) -> None:
    driver = Driver(shop.sink)
    scan_start = driver.begin()
    handles = [prepare(driver, shop.sink, value) for value in (1, 2)]
    driver.commit(handles, scan_start)
    shop.table().optimize.compact()
    shop.table().vacuum(retention_hours=0, enforce_retention_duration=False, dry_run=False, full=True)
    assert shop.files() == []
    restarted = Driver(shop.sink)
    assert set(restarted.committer.initialize_state(handles, scan_start).values()) == {COMMITTED}
    assert shop.values() == [1, 2]


# -- files that are missing --------------------------------------------------------------------------------------------


def test_a_file_is_proven_lost_if_vacuum_deletes_it_after_the_decision(shop: Shop) -> None:
    driver = Driver(shop.sink)
    scan_start = driver.begin()
    gone, whole = prepare(driver, shop.sink, 1, 2), prepare(driver, shop.sink, 3)
    driver.committer.confirm([gone, whole], 0)
    kept = next(path for path in shop.files() if whole.transaction in path.name)
    content = kept.read_bytes()
    shop.table().vacuum(retention_hours=0, enforce_retention_duration=False, dry_run=False, full=True)
    assert shop.files() == []
    kept.parent.mkdir(parents=True, exist_ok=True)
    kept.write_bytes(content)
    assert evidence(driver, [gone, whole], scan_start) == [ABORTED, COMMITTED]
    assert shop.values() == [3]
    again = prepare(driver, shop.sink, 1, 2, attempt=2)
    assert evidence(driver, [whole, again], scan_start) == [COMMITTED, COMMITTED]
    assert evidence(Driver(shop.sink), [gone, whole, again], scan_start) == [ABORTED, COMMITTED, COMMITTED]
    assert shop.values() == [1, 2, 3]


# -- a table that was altered ------------------------------------------------------------------------------------------


def test_metadata_of_columns_does_not_look_like_a_change_of_the_table(tmp_path: Path) -> None:
    """Each time deltalake loads a table, it returns the keys of a column's metadata in another order."""
    metadata = dict.fromkeys(("comment", "isSigned", "isTimestampNTZ", "scale"), "text")
    nested = StructType([Field("inner", PrimitiveType("long"), metadata=metadata)])
    value = Field("value", PrimitiveType("long"), metadata=metadata)
    columns: Any = Schema([value, Field("s", nested), Field("l", ArrayType(nested))])
    shop = Shop(tmp_path, columns)
    driver = Driver(shop.sink)
    for batch in range(5):
        scan_start = driver.begin()
        handle = driver.prepare(pa.record_batch({"value": [batch]}))
        driver.committer.confirm([handle], 0)
        assert evidence(driver, [handle], scan_start) == [COMMITTED]
    assert shop.values() == list(range(5))
    close_opened()


def _add_column(shop: Shop) -> None:
    shop.table().alter.add_columns([Field("more", PrimitiveType("long"))])


def _replace_columns(shop: Shop) -> None:
    write_deltalake(str(shop.path), pa.table({"other": [1]}), mode="overwrite", schema_mode="overwrite")


def _require_row_ids(shop: Shop) -> None:
    """The owner turns on row tracking, which changes only the protocol. Each added file would need an id."""
    features = ["appendOnly", "invariants", "domainMetadata", "rowTracking"]
    shop.commit_by_hand({"protocol": {"minReaderVersion": 1, "minWriterVersion": 7, "writerFeatures": features}})


@pytest.mark.parametrize("within", [True, False], ids=["within the commit", "before the commit"])
def test_a_column_added_after_the_decision_does_not_block_the_batch(shop: Shop, *, within: bool) -> None:
    driver = Driver(shop.sink)
    scan_start = driver.begin()
    handle = prepare(driver, shop.sink, 1)
    driver.committer.confirm([handle], 0)

    def overtaken(send: Callable[[], None]) -> None:
        if within:
            _add_column(shop)
        send()

    if not within:
        _add_column(shop)
    with next_commits(overtaken):
        assert evidence(driver, [handle], scan_start) == [COMMITTED]
    assert shop.rows().select(["value", "more"]).to_pylist() == [{"value": 1, "more": None}]


@pytest.mark.parametrize(
    ("alter", "why"),
    [
        (_replace_columns, "the column 'value' was removed"),
        (lambda shop: shop.table().alter.add_constraint({"positive": "value > 0"}), "has the constraint 'positive'"),
        (_require_row_ids, "has features that the sink does not support: 'domainMetadata', 'rowTracking'"),
    ],
    ids=["columns", "constraint", "only the protocol"],
)
@pytest.mark.parametrize("within", [True, False], ids=["within the commit", "before the commit"])
def test_a_change_after_the_decision_that_the_rows_do_not_fit_blocks_the_batch(
    shop: Shop, alter: Callable[[Shop], None], why: str, *, within: bool
) -> None:
    driver = Driver(shop.sink)
    scan_start = driver.begin()
    handle = prepare(driver, shop.sink, 1)
    driver.committer.confirm([handle], 0)

    def overtaken(send: Callable[[], None]) -> None:
        alter(shop)
        send()

    if within:
        with next_commits(overtaken):
            found = evidence(driver, [handle], scan_start)
    else:
        alter(shop)
        found = evidence(driver, [handle], scan_start)
    assert found == [UNKNOWN]
    assert why in driver.committer.blockers()[0]


def test_a_table_with_a_constraint_is_refused_at_the_start_and_in_a_task(shop: Shop) -> None:
    driver = Driver(shop.sink)
    driver.begin()
    shop.table().alter.add_constraint({"positive": "value > 0"})
    with pytest.raises(ConfigurationError, match="has the constraint 'positive'"):
        prepare(driver, shop.sink, 1)
    with pytest.raises(ConfigurationError, match="has the constraint 'positive'"):
        Driver(shop.sink)


NESTED = pa.struct([("a", pa.int64())])
WIDER = pa.struct([("a", pa.int64()), ("b", pa.int64())])


@pytest.mark.parametrize(
    "wrapped", [lambda kind: kind, pa.list_, lambda kind: pa.map_(pa.string(), kind)], ids=["struct", "list", "map"]
)
def test_a_field_added_to_a_struct_after_the_decision_does_not_block_the_batch(
    tmp_path: Path, wrapped: Callable[[pa.DataType], pa.DataType]
) -> None:
    kind, wider = wrapped(NESTED), wrapped(WIDER)

    def value(**fields: int) -> object:
        return {"struct": fields, "list": [fields], "map": [("k", fields)]}[shape]

    shape = "struct" if kind == NESTED else "map" if pa.types.is_map(kind) else "list"
    shop = Shop(tmp_path, pa.schema([("value", pa.int64()), ("s", kind)]))
    driver = Driver(shop.sink)
    scan_start = driver.begin()
    handle = driver.prepare(pa.record_batch([pa.array([1]), pa.array([value(a=1)], kind)], names=["value", "s"]))
    driver.committer.confirm([handle], 0)
    more = pa.table({"value": [2], "s": pa.array([value(a=2, b=3)], wider)})
    write_deltalake(str(shop.path), more, mode="append", schema_mode="merge")
    assert evidence(driver, [handle], scan_start) == [COMMITTED]
    found: Any = pa.table(
        QueryBuilder().register("orders", shop.table()).execute("SELECT value FROM orders").read_all()
    )
    assert sorted(found.column("value").to_pylist()) == [1, 2]
    close_opened()


@pytest.mark.parametrize(
    ("now", "why"),
    [
        (pa.struct([("b", pa.int64())]), "the column 's.a' was removed"),
        (pa.struct([("a", pa.string())]), "the column 's.a' is now string"),
        (pa.struct([pa.field("a", pa.int64(), nullable=False)]), "the column 's.a' is now NOT NULL"),
        (
            pa.struct([("a", pa.int64()), pa.field("b", pa.int64(), nullable=False)]),
            "the column 's.b' was added as NOT",
        ),
        (pa.list_(NESTED), "the column 's' is now list"),
    ],
    ids=str,
)
def test_a_struct_changed_after_the_decision_blocks_the_batch(tmp_path: Path, now: pa.DataType, why: str) -> None:
    shop = Shop(tmp_path, pa.schema([("s", NESTED)]))
    driver = Driver(shop.sink)
    scan_start = driver.begin()
    handle = driver.prepare(pa.record_batch([pa.array([{"a": 1}], NESTED)], names=["s"]))
    driver.committer.confirm([handle], 0)
    empty = pa.schema([pa.field("s", now)]).empty_table()
    write_deltalake(str(shop.path), empty, mode="overwrite", schema_mode="overwrite")
    assert evidence(driver, [handle], scan_start) == [UNKNOWN]
    assert why in driver.committer.blockers()[0]
    close_opened()


@pytest.mark.parametrize(
    ("now", "part", "why"),
    [
        (pa.field("part", pa.int64()), "abc", "the column 'part' is now int64"),
        (pa.field("part", pa.date32()), "2026-13-01", "the column 'part' is now date32[day]"),
        (pa.field("part", pa.bool_()), "1", "the column 'part' is now bool"),
        (pa.field("part", pa.string(), nullable=False), None, "the column 'part' is now NOT NULL"),
        (pa.field("part", pa.int64(), nullable=False), "5", ""),
        (pa.field("part", pa.date32()), "2026-12-01", ""),
        (pa.field("part", pa.int64()), None, ""),
    ],
    ids=str,
)
def test_a_partition_value_that_a_column_changed_after_the_decision_cannot_hold_blocks_the_batch(
    tmp_path: Path, now: pa.Field[Any], part: str | None, why: str
) -> None:
    """If the log named such a value, no one could read the table any more."""
    before: list[Any] = [pa.field("value", pa.int64()), pa.field("part", pa.string())]
    shop = Shop(tmp_path, pa.schema(before), partition_by=["part"])
    driver = Driver(shop.sink)
    scan_start = driver.begin()
    handle = driver.prepare(pa.record_batch({"value": [1], "part": pa.array([part], pa.string())}))
    driver.committer.confirm([handle], 0)
    empty = pa.schema([before[0], now]).empty_table()
    write_deltalake(str(shop.path), empty, mode="overwrite", schema_mode="overwrite", partition_by=["part"])
    assert evidence(driver, [handle], scan_start) == [UNKNOWN if why else COMMITTED]
    assert why in "".join(driver.committer.blockers())
    assert shop.values() == ([] if why else [1])
    close_opened()
