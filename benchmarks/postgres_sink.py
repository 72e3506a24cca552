"""Compare the PostgreSQL sink under Spark with Spark's `jdbc` writer and bare psycopg, on one server and in one session.

``make bench ARGS="--only postgres"`` runs the sides in turn. On each side, a streaming query reads the same files. The figure is
the number of rows per second of Spark's ``addBatch``, without the first batches. The server is durable (``fsync``). Only this
project's sides are exactly once. *psycopg, COPY*: each task copies its Arrow rows into the table, in one transaction. *A stage
and ON CONFLICT in each task*: each task copies its rows into a temporary table, and upserts from there.
"""

from __future__ import annotations

import contextlib
import io
import statistics
import tempfile
import uuid
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import psycopg
import pyarrow as pa
import pyarrow.csv as pa_csv
import pyarrow.parquet as pq
from psycopg.conninfo import conninfo_to_dict

from benchmarks.counting import WrongCountError
from benchmarks.durations import durations_ms
from benchmarks.measured import TWOPC, Case
from benchmarks.session import spark_session
from benchmarks.turns import in_turn
from twopc.integration.services.jars import postgres_jdbc_jars
from twopc.integration.services.postgres import LocalPostgres
from twopc.integration.spark import exactly_once
from twopc.sinks.postgres import PostgresSink

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

    from benchmarks.settings import Settings

TITLE: Final = "PostgreSQL: the sink beside Spark's jdbc writer and bare psycopg"
X_LABEL: Final = ""
PREPARED: Final = "twopc, vote='prepared'"
JDBC: Final = "Spark's jdbc writer"
REWRITTEN: Final = "Spark's jdbc writer, reWriteBatchedInserts"
COPY: Final = "psycopg, COPY"
STAGE: Final = "a stage and ON CONFLICT in each task"
_ROWS: Final = 100_000
_BATCHES: Final = 5
_WARM_UP_BATCHES: Final = 2
_TASKS: Final = 2
_VALUE: Final = "x" * 100
_COLUMNS: Final = "id bigint {}, key text, value text"
#: A durable server, whose WAL has space for a few batches between two of the server's checkpoints.
SERVER: Final = {
    "fsync": "on",
    "full_page_writes": "on",
    "shared_buffers": "256MB",
    "max_wal_size": "4GB",
    "max_prepared_transactions": "10",
}


@dataclass(frozen=True)
class _Mode:
    """One way of writing to PostgreSQL.

    Attributes:
        case: the case's name.
        is_upsert: whether the table has a primary key, and most rows update an existing row.
    """

    case: str
    is_upsert: bool

    @property
    def columns(self) -> str:
        return _COLUMNS.format("PRIMARY KEY" if self.is_upsert else "NOT NULL")

    @property
    def how(self) -> dict[str, Any]:
        return {"mode": "upsert", "key": "id"} if self.is_upsert else {}

    def ids(self, rows: int) -> int:
        """Return the number of distinct ids over all batches. With upserts, only the first two batches have new ids."""
        return 2 * rows if self.is_upsert else rows * (_WARM_UP_BATCHES + _BATCHES)


_MODES: Final = (_Mode("append to PostgreSQL", is_upsert=False), _Mode("upsert into PostgreSQL", is_upsert=True))


def cases(_: Settings) -> dict[str, _Mode]:
    """Return each case's mode, by the case's name."""
    return {mode.case: mode for mode in _MODES}


def measure(settings: Settings) -> Iterator[Case]:
    """Yield a case for appends, and one for upserts."""
    rows = settings.rows(_ROWS)
    with (
        LocalPostgres(options=SERVER) as server,
        tempfile.TemporaryDirectory(prefix="twopc-bench-", ignore_cleanup_errors=True) as name,
        spark_session(Path(name), jars=postgres_jdbc_jars()) as spark,
    ):
        for case, mode in settings.wanted(cases(settings)):
            bench = _Bench(spark, server.dsn, Path(name), mode, rows)
            ran, _ = in_turn(settings.rounds, bench.sides(settings.exactly_once), warm_up=1)
            yield Case(
                name=case,
                unit="rows/s",
                samples=ran,
                counted={side: bench.expected * len(found) for side, found in ran.items()},
            )


class _Bench:
    """Runs queries over the same files. Counts each output and then drops it.

    Attributes:
        expected: how many rows the table must have at the end.
    """

    def __init__(self, spark: SparkSession, dsn: str, directory: Path, mode: _Mode, rows: int) -> None:
        self._spark, self._dsn, self._mode, self._rows = spark, dsn, mode, rows
        self._directory = directory
        self._files = directory / f"rows-{mode.case.split()[0]}"
        self.expected = mode.ids(rows)
        _write_files(self._files, rows, self.expected)

    def sides(self, settings: dict[str, Any]) -> dict[str, Callable[[], float]]:
        """Return each side's name with the function that runs it."""
        found: dict[str, Callable[[], float]] = {
            TWOPC: lambda: self._exactly_once(settings),
            PREPARED: lambda: self._exactly_once(settings, vote="prepared"),
        }
        if self._mode.is_upsert:
            return {**found, STAGE: lambda: self._function(self._by_stage)}
        return {
            **found,
            JDBC: lambda: self._function(self._by_jdbc({})),
            REWRITTEN: lambda: self._function(self._by_jdbc({"reWriteBatchedInserts": "true"})),
            COPY: lambda: self._function(self._by_copy),
        }

    # -- the sides ------------------------------------------------------------------------------------------------------

    def _exactly_once(self, settings: dict[str, Any], **how: Any) -> float:
        table, checkpoint = self._created(), str(self._directory / uuid.uuid4().hex)
        sink = PostgresSink(name=table, dsn=self._dsn, table=table, **self._mode.how, **how)
        each = exactly_once(sink, checkpoint_location=checkpoint, **settings)
        try:
            return self._run(each, table, checkpoint)
        finally:
            each.close()

    def _function(self, function: Callable[[str], Callable[[DataFrame, int], None]]) -> float:
        table = self._created()
        return self._run(function(table), table, str(self._directory / uuid.uuid4().hex))

    def _by_jdbc(self, more: dict[str, str]) -> Callable[[str], Callable[[DataFrame, int], None]]:
        found = conninfo_to_dict(self._dsn)
        url = "jdbc:postgresql://{host}:{port}/{dbname}".format(**found)
        login = {"user": str(found["user"]), "password": str(found["password"]), "driver": "org.postgresql.Driver"}

        def of(table: str) -> Callable[[DataFrame, int], None]:
            options = {"url": url, "dbtable": table, **login, **more}
            return lambda frame, _: frame.write.format("jdbc").options(**options).mode("append").save()

        return of

    def _by_copy(self, table: str) -> Callable[[DataFrame, int], None]:
        return _in_each_task(self._dsn, [f"COPY {table} FROM STDIN (FORMAT csv)"], copies=0)

    def _by_stage(self, table: str) -> Callable[[DataFrame, int], None]:
        statements = [
            f"CREATE TEMPORARY TABLE stage (LIKE {table}) ON COMMIT DROP",
            "COPY stage FROM STDIN (FORMAT csv)",
            f"INSERT INTO {table} TABLE stage ON CONFLICT (id) DO UPDATE SET key = EXCLUDED.key, value = EXCLUDED.value",
        ]
        return _in_each_task(self._dsn, statements, copies=1)

    # -- each run -------------------------------------------------------------------------------------------------------

    def _created(self) -> str:
        table = f"b{uuid.uuid4().hex[:8]}"
        execute(self._dsn, f"CREATE TABLE {table} ({self._mode.columns})")
        return table

    def _run(self, function: Callable[[DataFrame, int], None], table: str, checkpoint: str) -> float:
        """Return the median batch's rows per second."""
        source = self._spark.readStream.schema("id BIGINT, key STRING, value STRING").option(
            "maxFilesPerTrigger", _TASKS
        )
        writer = source.parquet(str(self._files)).writeStream.foreachBatch(function)
        query: StreamingQuery = writer.option("checkpointLocation", checkpoint).trigger(availableNow=True).start()
        query.awaitTermination()
        times_ms = durations_ms(query, "addBatch", warm_up=_WARM_UP_BATCHES)
        counted = f"SELECT count(*), count(DISTINCT id) FROM {table}"  # noqa: S608 - the name is our own
        [(rows, ids)] = execute(self._dsn, counted)
        if (rows, ids) != (self.expected, self.expected):
            raise WrongCountError(f"table {table} has {rows} rows with {ids} ids instead of {self.expected}")
        execute(self._dsn, f"DROP TABLE {table}")
        return self._rows / float(statistics.median(times_ms)) * 1000


def execute(dsn: str, statement: str) -> list[tuple[Any, ...]]:
    """Execute one statement, and return its rows."""
    with contextlib.closing(psycopg.connect(dsn, autocommit=True)) as connection:
        cursor = connection.execute(statement.encode())
        return cursor.fetchall() if cursor.description else []


def _in_each_task(dsn: str, statements: list[str], *, copies: int) -> Callable[[DataFrame, int], None]:
    """Return a function for ``foreachBatch`` whose tasks execute the statements in one transaction.

    Statement number ``copies`` is the COPY.
    """

    def write(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        with psycopg.connect(dsn) as connection, connection.cursor() as cursor:
            for number, statement in enumerate(statements):
                if number != copies:
                    cursor.execute(statement.encode())
                    continue
                with cursor.copy(statement.encode()) as stream:
                    for batch in batches:
                        text = io.BytesIO()
                        pa_csv.write_csv(batch, text, pa_csv.WriteOptions(include_header=False))
                        stream.write(text.getbuffer())
        yield pa.record_batch({"done": pa.array([True])})

    return lambda frame, _: frame.mapInArrow(write, "done BOOLEAN").write.format("noop").mode("append").save()


def _write_files(directory: Path, rows: int, ids: int) -> None:
    directory.mkdir()
    first, each = 0, rows // _TASKS
    for _ in range(_WARM_UP_BATCHES + _BATCHES):
        for part in range(_TASKS):
            count = each if part else rows - each * (_TASKS - 1)
            numbers = pa.array([number % ids for number in range(first, first + count)], pa.int64())
            columns = {"id": numbers, "key": numbers.cast(pa.string()), "value": pa.array([_VALUE] * count)}
            pq.write_table(pa.table(columns), directory / f"{first:012}.parquet")
            first += count
