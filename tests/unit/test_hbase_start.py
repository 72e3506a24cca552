"""A driver starts on an HBase that contains a former sink's deletions, lacks the sink's table, or withholds permissions."""

from __future__ import annotations

import contextlib
import logging
from typing import TYPE_CHECKING, Any

import pytest

from twopc import control
from twopc.attempt import Claim, Owner
from twopc.errors import ConfigurationError
from twopc.sinks.hbase import Delete, HBaseSink, Increment, Put, clock
from twopc.sinks.hbase.client import HBaseClient
from twopc.sinks.hbase.cluster import Cluster, Region
from twopc.sinks.hbase.committer import HBaseCommitter
from twopc.sinks.hbase.control import ControlCell
from twopc.sinks.hbase.errors import AbsentTableError, RemoteError
from twopc.sinks.hbase.messages import client_pb, comparator_pb, hbase_pb
from twopc.sinks.hbase.row_ops import write
from twopc.sinks.hbase.staging import pack
from twopc.sinks.staged.committer import StagedCommitter

if TYPE_CHECKING:
    from collections.abc import Callable

    from twopc.sinks.hbase.mappings import Mapping
    from twopc.sinks.hbase.row_ops import Op

SCHEMAS_HIDDEN = RemoteError("org.apache.hadoop.hbase.security.AccessDeniedException", "Insufficient permissions")


class Row:
    """One row with one cell in a region. A deletion hides the cell up to a time.

    Attributes:
        now_ms: the region server's clock.
        deleted_ms: the deletion's timestamp.
    """

    def __init__(self, *, now_ms: int, deleted_ms: int) -> None:
        self.now_ms, self.deleted_ms = now_ms, deleted_ms
        self._held: tuple[int, bytes] | None = None

    def execute_one(self, op: Op) -> Any:
        """Read the cell, or replace it if it has the expected value. A put has the cell's timestamp or a later one."""
        at_ms, value = self._visible()
        if op.look is not None:
            found = [client_pb.Result()]
            if value:
                found[0].cell.add(family=b"t", qualifier=b"state", value=value, timestamp=at_ms)
            return found[0]
        assert op.condition is not None
        compared = comparator_pb.BinaryComparator.FromString(op.condition.comparator.serialized_comparator)
        if compared.comparable.value != value:
            return False
        [mutation] = op.mutations
        own_ms = mutation.timestamp if mutation.HasField("timestamp") else max(self.now_ms, at_ms)
        self._held = own_ms, mutation.column_value[0].qualifier_value[0].value
        return True

    def _visible(self) -> tuple[int, bytes]:
        return self._held if self._held is not None and self._held[0] > self.deleted_ms else (0, b"")


def _record(revision: int) -> bytes:
    return control.encode(control.Control(id="i", revision=revision))


def test_the_record_of_a_new_sink_is_visible_after_the_deletion_of_a_former_record() -> None:
    row: Any = Row(now_ms=2_000, deleted_ms=1_000)
    cell = ControlCell(table="t", sink="s")
    assert cell.swap(row, None, _record(1))
    row.now_ms = 500  # another server serves the row now, and its clock is behind
    assert cell.swap(row, _record(1), _record(2))
    assert not cell.swap(row, None, _record(1))
    assert cell.load(row) == _record(2)


def test_a_record_that_a_deletion_hides_is_reported_with_the_way_to_remove_the_deletion() -> None:
    row: Any = Row(now_ms=1_000, deleted_ms=1_000)
    with pytest.raises(ConfigurationError, match=r"row b's/control' of table 't'.*flush 't' .*major_compact 't'"):
        ControlCell(table="t", sink="s").swap(row, None, _record(1))


# -- a start ---------------------------------------------------------------------------------------------------------


def committer_of(mapping: Mapping) -> HBaseCommitter:
    return HBaseSink(
        name="s", zookeeper="h:1", table="data", mapping=mapping, timeout_ms=300, user="u"
    ).create_committer()


@pytest.fixture
def committer() -> HBaseCommitter:
    return committer_of(Increment("{id}", {"d:v": "n"}))


@pytest.mark.parametrize(("version", "highest"), [(0, 7_000), (5_000, 0)])
def test_the_first_version_of_a_sink_is_above_hbases_clock(
    version: int, highest: int, committer: HBaseCommitter, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The fence's row may have been deleted, too, and this host's clock may be behind."""
    monkeypatch.setattr(HBaseCommitter, "_create_table", lambda _: None)
    monkeypatch.setattr(HBaseCommitter, "_read", lambda *_: control.Control(version=version))
    monkeypatch.setattr(clock, "read_server_clock", lambda *_, **__: 7_000)
    monkeypatch.setattr(StagedCommitter, "acquire", lambda *_: 1)
    committer.acquire(Claim("q", "r", "registers"), Owner(None, 0))
    assert committer._highest_version == highest


@pytest.mark.parametrize("mapping", [Put("{id}", {"d:v": "n"}), Delete("{id}", ["d:v"])])
@pytest.mark.parametrize(
    ("version", "server_ms", "is_refused"), [(0, 1_060_001, True), (0, 1_060_000, False), (1, 1_060_001, False)]
)
def test_a_new_sink_does_not_start_at_the_time_of_a_server_whose_clock_is_ahead(
    version: int, server_ms: int, mapping: Mapping, monkeypatch: pytest.MonkeyPatch, *, is_refused: bool
) -> None:
    """The clock of the other region servers may be right, and the sink's cells would hide what clients write there."""

    def read_slowly(*_: object, **__: object) -> int:
        monkeypatch.setattr(control, "now_ms", lambda: 1_000_000)
        return server_ms

    monkeypatch.setattr(control, "now_ms", lambda: 900_000)
    monkeypatch.setattr(clock, "read_server_clock", read_slowly)
    monkeypatch.setattr(HBaseCommitter, "_create_table", lambda _: None)
    monkeypatch.setattr(HBaseCommitter, "_read", lambda *_: control.Control(version=version))
    monkeypatch.setattr(StagedCommitter, "acquire", lambda *_: 1)
    refused = pytest.raises(ConfigurationError, match=r"this host's clock is 60 s behind.*nothing was written")
    with refused if is_refused else contextlib.nullcontext():
        committer_of(mapping).acquire(Claim("q", "r", "registers"), Owner(None, 0))


class Master:
    """A master that rejects the creation of a table, or creates the table after a while.

    Attributes:
        asked: how often it was asked.
    """

    def __init__(self, monkeypatch: pytest.MonkeyPatch, *errors: str, exists_after: int = 10**9) -> None:
        self.asked = self._looks = 0
        self._errors, self._exists_after = list(errors), exists_after
        monkeypatch.setattr(Cluster, "call_master", lambda _, step: step(self))
        monkeypatch.setattr(Cluster, "region_of", self._region_of)

    def create_table(self, *_: Any) -> None:
        self.asked += 1
        if self._errors:
            name = self._errors.pop(0)
            raise RemoteError(f"org.apache.hadoop.hbase.{name}", f"{name}: twopc")

    def _region_of(self, table: str, row: bytes) -> Region:
        self._looks += 1
        if self._looks <= self._exists_after:
            raise AbsentTableError(f"table {table!r} does not exist")
        return Region(row, b"", b"", ("h", 1))


@pytest.mark.parametrize(
    ("error", "advice"),
    [
        ("NamespaceNotFoundException", "Create the namespace"),
        ("security.AccessDeniedException", "permissions that docs/hbase.md lists"),
        ("quotas.QuotaExceededException", "Raise the quota"),
    ],
)
def test_the_masters_reason_for_not_creating_the_table_is_reported(
    error: str, advice: str, committer: HBaseCommitter, monkeypatch: pytest.MonkeyPatch
) -> None:
    master = Master(monkeypatch, error)
    with pytest.raises(Exception, match=f"creating its table: .*twopc.*{advice}"):
        committer.acquire(Claim("q", "r", "registers"), Owner(None, 0))
    assert master.asked == 1


@pytest.mark.parametrize("errors", [(), ("TableExistsException",), ("PleaseHoldException", "TableExistsException")])
def test_a_driver_waits_for_a_table_that_it_or_another_driver_is_creating(
    errors: tuple[str, ...], committer: HBaseCommitter, monkeypatch: pytest.MonkeyPatch
) -> None:
    master = Master(monkeypatch, *errors, exists_after=3)
    committer._create_table()
    assert master.asked == max(1, len(errors))


@pytest.fixture
def without_schemas(monkeypatch: pytest.MonkeyPatch) -> Callable[[Any], None]:
    """HBase does not show the tables' schemas, and returns this to a read of the data table."""

    def describe(*_: Any) -> None:
        raise SCHEMAS_HIDDEN

    def answer(found: Any) -> None:
        monkeypatch.setattr(HBaseClient, "execute", lambda *_: [found])

    monkeypatch.setattr(Cluster, "describe", describe)
    return answer


def test_a_start_without_the_right_to_see_schemas_warns_about_the_check_that_it_leaves_out(
    committer: HBaseCommitter, without_schemas: Callable[[Any], None], caplog: pytest.LogCaptureFixture
) -> None:
    without_schemas(client_pb.Result())
    with caplog.at_level(logging.WARNING, "twopc"):
        committer.inspect()
    [warning] = caplog.messages
    assert "the TTL and DURABILITY of the tables 'data' and 'twopc' were not checked" in warning
    assert committer._client.synced == {"twopc"}


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        (AbsentTableError("table 'data' does not exist"), "'data' does not exist. Create the table"),
        (RemoteError("o.a.h.NoSuchColumnFamilyException", "no d"), "no d. Create the column family"),
        (SCHEMAS_HIDDEN, "Insufficient permissions. Grant the user the permissions"),
    ],
)
def test_a_start_without_the_right_to_see_schemas_still_requires_the_table_its_families_and_the_right_to_read(
    answer: Exception, words: str, committer: HBaseCommitter, without_schemas: Callable[[Any], None]
) -> None:
    without_schemas(answer)
    with pytest.raises(ConfigurationError, match=words):
        committer.inspect()


def schemas(durability: dict[str, bytes]) -> dict[str, Any]:
    """The schemas of both tables. A table without an entry has the default durability."""
    found = {}
    for name, families in (("data", [b"d"]), ("twopc", [b"t", b"d"])):
        found[name] = hbase_pb.TableSchema()
        for family in families:
            found[name].column_families.add(name=family)
        if name in durability:
            found[name].attributes.add(first=b"DURABILITY", second=durability[name])
    return found


@pytest.mark.parametrize(
    ("durability", "is_synced"),
    [
        ({}, True),
        ({"data": b"USE_DEFAULT"}, True),
        ({"data": b"SYNC_WAL"}, True),
        ({"data": b"FSYNC_WAL", "twopc": b"FSYNC_WAL"}, True),
        ({"data": b"ASYNC_WAL"}, False),
        ({"data": b"SKIP_WAL"}, False),
    ],
)
def test_a_mutation_gets_the_tables_durability_unless_that_would_lose_rows(
    durability: dict[str, bytes], committer: HBaseCommitter, monkeypatch: pytest.MonkeyPatch, *, is_synced: bool
) -> None:
    """An explicit SYNC_WAL would weaken a table with FSYNC_WAL, and a cluster with ``hbase.wal.hsync``."""
    monkeypatch.setattr(Cluster, "describe", lambda *_: schemas(durability))
    monkeypatch.setattr(ControlCell, "load", lambda *_: None)
    committer.inspect()
    sent: list[Any] = []

    def call(_: Cluster, server: Any, method: str, request: Any) -> Any:
        del server, method
        sent.extend(action.mutation for part in request.regionAction for action in part.action)
        raise ConnectionError

    monkeypatch.setattr(Cluster, "region_of", lambda *_: Region(b"r", b"", b"", ("h", 1)))
    monkeypatch.setattr(Cluster, "call", call)
    cells = {(b"d", b"v"): b"1"}
    chunk = client_pb.RegionAction.FromString(pack(Put("{id}", {"d:v": "v"}).actions([(b"k", (b"1",))])))
    assert not committer._client.send_whole("data", chunk)
    ops = [write(table, b"k", cells, at_ms=1) for table in ("data", "twopc")]
    committer._client.execute(ops, retry_if=lambda _: False)
    wanted = "USE_DEFAULT" if is_synced else "SYNC_WAL"
    assert [client_pb.MutationProto.Durability.Name(one.durability) for one in sent] == [wanted, wanted, "USE_DEFAULT"]


def test_a_task_stages_its_rows_with_the_durability_of_the_sinks_own_table() -> None:
    client = HBaseSink(name="s", zookeeper="h:1", table="data", mapping=Delete("{id}"), user="u").create_client()
    assert client.synced == {"twopc"}


@pytest.mark.parametrize("durability", [b"SKIP_WAL", b"ASYNC_WAL"])
def test_a_staging_table_that_may_lose_rows_is_refused(
    durability: bytes, committer: HBaseCommitter, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Cluster, "describe", lambda *_: schemas({"twopc": durability}))
    with pytest.raises(
        ConfigurationError, match=r"'twopc' has the durability SKIP_WAL or ASYNC_WAL.*Nothing was written$"
    ):
        committer.inspect()
