"""Another user's schema on the search path: the sink runs none of that user's code, and the user's tables are found as before."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any

import psycopg
import pyarrow as pa
import pytest
from psycopg.conninfo import make_conninfo

from tests.live.one_task import apply, batch
from tests.live.postgres.hostile import create_catalogs, create_functions, create_operators
from tests.live.postgres.support import run, sink_of
from twopc.attempt import Evidence
from twopc.sinks.postgres.table import read_table
from twopc.testing.contract.drivers import Driver

if TYPE_CHECKING:
    Connection = psycopg.Connection[Any]

_ROWS = batch(id=pa.array([1, 2], pa.int64()), note=["a", "b"])
_CHANGED = batch(id=pa.array([2, 3], pa.int64()), note=["c", "c"])
#: The system catalog comes first, unless the path names it.
_PATHS = {"later": "public, hostile", "earlier": "hostile, public", "before the system": "hostile, pg_catalog, public"}


@pytest.fixture(params=["connection", pytest.param("older_connection", marks=pytest.mark.whole)], ids=["18", "16"])
def server(request: pytest.FixtureRequest) -> Connection:
    """A new database on each version."""
    found: Connection = request.getfixturevalue(request.param)
    return found


@pytest.fixture(params=_PATHS)
def hostile(request: pytest.FixtureRequest, server: Connection) -> str:
    """A connection string whose search path contains a hostile schema."""
    run(server, "CREATE SCHEMA hostile")
    create_functions(server, "hostile")
    if request.param == "before the system":
        create_catalogs(server, "hostile")
    else:
        create_operators(server, "hostile")
    path = _PATHS[request.param].replace(" ", "")
    password = server.info.password
    return make_conninfo(server.info.dsn, password=password, options=f"-c search_path={path}")


@pytest.fixture
def tables(server: Connection) -> None:
    """Tables with everything about which the sink asks the server."""
    run(
        server,
        "CREATE SEQUENCE public.numbers",
        "CREATE TABLE public.target (id bigint PRIMARY KEY, note text CHECK (note <> ''), number int DEFAULT nextval('numbers'), "
        "size int GENERATED ALWAYS AS (length(note)) STORED)",
        "CREATE INDEX ON public.target (lower(note)) WHERE note IS NOT NULL",
        "CREATE INDEX ON public.target USING brin (id)",
        "CREATE TABLE public.parts (id bigint, note text) PARTITION BY RANGE (lower(note))",
        "CREATE TABLE public.part PARTITION OF public.parts DEFAULT PARTITION BY HASH (id)",
        "CREATE TABLE public.rest PARTITION OF public.part FOR VALUES WITH (MODULUS 1, REMAINDER 0)",
        "CREATE PUBLICATION news FOR TABLE public.target (id, note, number), public.parts",
        "CREATE TABLE public.seen (path text)",
        "CREATE FUNCTION public.look() RETURNS trigger LANGUAGE plpgsql AS "
        "$$ BEGIN INSERT INTO seen VALUES (pg_catalog.current_setting('search_path')); RETURN NEW; END $$",
        "CREATE TABLE public.watched (id bigint, note text)",
        "CREATE TRIGGER look BEFORE INSERT ON public.watched FOR EACH ROW EXECUTE FUNCTION public.look()",
    )


@pytest.mark.parametrize(
    ("table", "arguments"),
    [
        ("parts", {}),
        ("target", {"mode": "upsert", "key": "id"}),
        ("target", {"mode": "upsert", "key": "id", "order_by": "note"}),
    ],
    ids=["append", "upsert", "newest"],
)
@pytest.mark.usefixtures("tables")
def test_the_sink_runs_no_code_of_another_schema(
    hostile: str, server: Connection, table: str, arguments: dict[str, Any]
) -> None:
    sink = sink_of(hostile, table, **arguments)
    assert apply(sink, _ROWS) == [Evidence.COMMITTED]
    assert apply(sink, _CHANGED) == [Evidence.COMMITTED]
    stored = server.execute(f"SELECT id, note FROM public.{table} ORDER BY id, note".encode()).fetchall()
    changed = [(1, "a"), (2, "c"), (3, "c")]
    assert stored == (changed if table == "target" else [(1, "a"), (2, "b"), *changed[1:]])


@pytest.mark.usefixtures("tables")
def test_a_start_after_a_crash_runs_no_code_of_another_schema(hostile: str, server: Connection) -> None:
    sink = sink_of(hostile, "parts")
    lost = Driver(sink)
    scan_start = lost.begin()
    decided = lost.prepare(_ROWS)
    lost.prepare(_CHANGED, partition=1)
    lost.committer.confirm([decided], 0)
    with contextlib.closing(sink.create_committer()) as operator:
        assert operator.observe([decided], scan_start) is not None
    again = Driver(sink)
    assert again.committer.initialize_state([decided], scan_start) == {decided: Evidence.COMMITTED}
    again.committer.recover_and_abort([decided])
    assert server.execute("SELECT count(*) FROM public.parts").fetchall() == [(2,)]
    stages = "SELECT count(*) FROM pg_tables WHERE schemaname = 'twopc' AND tablename LIKE 'stage%'"
    assert server.execute(stages).fetchall() == [(0,)]


@pytest.mark.usefixtures("tables")
@pytest.mark.parametrize("server", ["connection"], ids=["18"], indirect=True)  # the older server allows no votes
def test_triggers_see_the_search_path_of_the_connection(hostile: str, server: Connection) -> None:
    assert apply(sink_of(hostile, "watched", vote="prepared"), _ROWS) == [Evidence.COMMITTED]
    with contextlib.closing(psycopg.connect(hostile, autocommit=True)) as same:
        [(path,)] = same.execute("SHOW search_path").fetchall()
    assert set(server.execute("SELECT path FROM public.seen").fetchall()) == {(path,)}


@pytest.mark.usefixtures("tables")
def test_a_table_is_described_as_on_an_ordinary_search_path(hostile: str, server: Connection) -> None:
    with contextlib.closing(psycopg.connect(hostile, autocommit=True)) as same:
        for name in ("target", "parts", "watched"):
            found, usual = read_table(same, name), read_table(server, name)
            assert (found.oid, found.columns) == (usual.oid, usual.columns)
            assert [one.columns for one in found.indexes] == [one.columns for one in usual.indexes]
            assert found.rejecting_updates == usual.rejecting_updates
