"""The HBase sink beside the client alone, in turn, on one server: without any guarantee, one call a row and many.

``.venv/bin/python benchmarks/hbase_sink.py --rows 10000 --pairs 3``. What is timed is everything between the Arrow batch and
the last acknowledgement: for the sink encoding, staging, confirming, applying and proving. *Client*: ``hbase-driver``'s own
``Table``, which makes one call a row, from values that are made beforehand. *Batched*: the same mutations by this project's
client, 1000 in a call, without a condition: what HBase can take from one Python process.
"""

from __future__ import annotations

import contextlib
import statistics
import time
import uuid
from typing import TYPE_CHECKING, Annotated, Any

import pyarrow as pa
import typer
from hbasedriver.client.client import Client
from hbasedriver.operations import Append as ClientAppend
from hbasedriver.operations import Increment as ClientIncrement
from hbasedriver.operations import Put as ClientPut
from rich.console import Console
from rich.table import Table

from integration.services.hbase import LocalHBase
from sinks.hbase import HBaseSink
from sinks.hbase.errors import FAILURES
from sinks.hbase.mappings import COUNTER, Append, Increment, Mapping, Put
from sinks.hbase.messages import hbase_pb, name_parts
from sinks.hbase.row_ops import Op
from twopc.attempt import Attempt, Claim, Evidence, TaskAttempt

if TYPE_CHECKING:
    from collections.abc import Callable

BATCH_ROWS = 10_000  # Spark's spark.sql.execution.arrow.maxRecordsPerBatch
VALUE = b"x" * 50
TABLE = "bench"
console = Console(width=130)

#: Name, the sink's mapping, the values of one row's cells, and the same by the client's table.
WORKLOADS: list[tuple[str, Callable[[str], Mapping], tuple[bytes, ...], Callable[[Any, bytes], Any]]] = [
    (
        "Put, 1 cell (upsert)",
        lambda p: Put(p + "{id}", {"d:v": "v"}),
        (VALUE,),
        lambda t, row: t.put(ClientPut(row).add_column(b"d", b"v", VALUE)),
    ),
    (
        "Increment, 1 cell",
        lambda p: Increment(p + "{id}", {"d:n": "n"}),
        (COUNTER.pack(1),),
        lambda t, row: t.increment(ClientIncrement(row).add_column(b"d", b"n", 1)),
    ),
    (
        "Append, 1 cell",
        lambda p: Append(p + "{id}", {"d:v": "v"}),
        (VALUE,),
        lambda t, row: t.append(ClientAppend(row).add_column(b"d", b"v", VALUE)),
    ),
]


def seconds(work: Callable[[], object]) -> float:
    """How long some work takes."""
    began = time.perf_counter()
    work()
    return time.perf_counter() - began


def batched(sink: HBaseSink, prefix: str, values: tuple[bytes, ...], rows: int) -> None:
    """The mutations of so many rows, without a guarantee."""
    client = sink.create_client()
    with contextlib.closing(client):
        keys = [f"{prefix}{number}".encode() for number in range(rows)]
        mutations = sink.mapping.mutations((key, values) for key in keys)
        ops = [Op(TABLE, mutation.row, mutations=(mutation,)) for mutation in mutations]
        if client.execute(ops) != [True] * rows:
            raise AssertionError("not written")


def with_sink(sink: HBaseSink, batches: list[pa.RecordBatch]) -> list[float]:
    """Seconds for these rows by the sink, up to the end of each step: staged, confirmed, applied."""
    committer = sink.create_committer()
    committer.inspect()
    driver_epoch = committer.acquire(Claim("bench", uuid.uuid4().hex, "none"))
    began = time.perf_counter()
    scan_start = committer.begin_attempt()
    writer = sink.create_writer(TaskAttempt("bench", 0, Attempt(0, 0), 0, driver_epoch, -1))
    for batch in batches:
        writer.write_rows(batch)
    handle = writer.snapshot_state(0)
    if handle is None:
        raise AssertionError("there are rows")
    writer.hand_over()
    writer.close()
    ends = [time.perf_counter() - began]
    committer.confirm([handle], 0)
    ends.append(time.perf_counter() - began)
    if committer.commit([handle], scan_start) != {handle: Evidence.COMMITTED}:
        raise AssertionError(f"not committed: {committer.blockers()}")
    ends.append(time.perf_counter() - began)
    committer.close()
    return ends


def create_table(sink: HBaseSink) -> None:
    """Make the table, and return when it is served."""
    families = [hbase_pb.ColumnFamilySchema(name=b"d")]
    client = sink.create_client()
    with contextlib.closing(client):
        client.cluster.call_master(lambda master: master.create_table(*name_parts(TABLE), families))
        deadline = time.monotonic() + 30
        while time.monotonic() < deadline:
            with contextlib.suppress(*FAILURES):
                client.cluster.region_of(TABLE, b"")
                return
            time.sleep(0.05)
        raise AssertionError("the table is not served")


def main(
    rows: Annotated[int, typer.Option(help="Rows of one run.")] = 10_000,
    pairs: Annotated[int, typer.Option(help="Runs of each side, in turn.")] = 3,
) -> None:
    """Print rates, their ratios, and the parts of the sink's time."""
    table = Table(title=f"{rows} rows, {pairs} pairs, medians; ratio = sink / client alone")
    columns = (
        "operation",
        "client rows/s",
        "batched rows/s",
        "sink rows/s",
        "to client",
        "to batched",
        "staged, confirmed, applied",
    )
    for column in columns:
        table.add_column(column)
    ids = [pa.array(range(start, min(start + BATCH_ROWS, rows)), pa.int64()) for start in range(0, rows, BATCH_ROWS)]
    batches = [
        pa.record_batch({"id": i, "n": pa.array([1] * len(i), pa.int64()), "v": pa.array([VALUE] * len(i))})
        for i in ids
    ]
    with LocalHBase(heap="1g") as server:
        create_table(HBaseSink(name="b", zookeeper=server.zookeeper, table=TABLE, mapping=Put("{id}", {"d:v": "v"})))
        client: Any = Client({"hbase.zookeeper.quorum": server.zookeeper}).get_table(b"default", TABLE.encode())
        for name, mapping, values, send in WORKLOADS:
            alone, plain, ours = [], [], []
            for _ in range(pairs):
                prefixes = [f"{uuid.uuid4().hex[:8]}:" for _ in range(3)]
                keys = [f"{prefixes[0]}{number}".encode() for number in range(rows)]
                alone.append(seconds(lambda keys=keys, send=send: [send(client, key) for key in keys]))  # type: ignore[misc]
                sink = HBaseSink(
                    name=f"b{uuid.uuid4().hex[:8]}",
                    zookeeper=server.zookeeper,
                    table=TABLE,
                    mapping=mapping(prefixes[2]),
                )
                plain.append(seconds(lambda sink=sink, p=prefixes[1], v=values: batched(sink, p, v, rows)))  # type: ignore[misc]
                ours.append(with_sink(sink, batches))
            steps = zip(*([o[0], o[1] - o[0], o[2] - o[1]] for o in ours), strict=True)
            table.add_row(
                name,
                f"{rows / statistics.median(alone):,.0f}",
                f"{rows / statistics.median(plain):,.0f}",
                f"{rows / statistics.median(o[-1] for o in ours):,.0f}",
                _ratios(alone, ours),
                _ratios(plain, ours),
                " ".join(f"{part:.2f} s" for part in map(statistics.median, steps)),
            )
        client.close()
    console.print(table)


def _ratios(others: list[float], ours: list[list[float]]) -> str:
    found = sorted(other / own[-1] for other, own in zip(others, ours, strict=True))
    return f"{statistics.median(found):.2f} ({found[0]:.2f} to {found[-1]:.2f})"


if __name__ == "__main__":
    typer.run(main)
