"""Compare the HBase sink with its bare client, which gives no guarantee, both with one row per call and with many.

``make bench ARGS="--only hbase"`` runs the sides in turn. The time covers everything between the Arrow batch and the last
acknowledgement. The sink encodes, stages, confirms, applies and proves. *One call per row* uses ``hbase-driver``'s own ``Table``
with prepared values. *Batched* sends the same mutations with this project's client, 1000 per call, without
conditions, which is the fastest way for one Python process to write to HBase.
"""

from __future__ import annotations

import contextlib
import time
import uuid
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa
from hbasedriver.client.client import Client
from hbasedriver.operations import Append as ClientAppend
from hbasedriver.operations import Increment as ClientIncrement
from hbasedriver.operations import Put as ClientPut
from hbasedriver.operations import Scan

from benchmarks.counting import WrongCountError
from benchmarks.measured import TWOPC, Case
from benchmarks.one_task import ARROW_ROWS, Steps, run_task
from benchmarks.redis_sink import step_facts
from benchmarks.turns import in_turn
from twopc.integration.services.hbase import LocalHBase
from twopc.sinks.hbase import HBaseSink
from twopc.sinks.hbase.errors import FAILURES
from twopc.sinks.hbase.mappings import COUNTER, Append, Increment, Mapping, Put
from twopc.sinks.hbase.messages import Message, client_pb, hbase_pb, name_parts
from twopc.sinks.hbase.row_ops import DURABLE, Op

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from benchmarks.settings import Settings

TITLE: Final = "HBase: the sink beside its bare client"
X_LABEL: Final = ""
CLIENT: Final = "hbase-driver, one call per row"
BATCHED: Final = "the same client, batched"
_ROWS: Final = 5_000
_VALUE: Final = b"x" * 50
_TABLE: Final = "bench"
_TIMEOUT_S: Final = 30
_ROWS_PER_REQUEST: Final = 10_000

#: For each operation: its name, the sink's mapping, the values of one row's cells, and the same operation as a client call.
WORKLOADS: list[tuple[str, Callable[[str], Mapping], tuple[bytes, ...], Callable[[Any, bytes], Any]]] = [
    (
        "Put, 1 cell (upsert)",
        lambda p: Put(p + "{id}", {"d:v": "v"}),
        (_VALUE,),
        lambda t, row: t.put(ClientPut(row).add_column(b"d", b"v", _VALUE)),
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
        (_VALUE,),
        lambda t, row: t.append(ClientAppend(row).add_column(b"d", b"v", _VALUE)),
    ),
]


def cases(_: Settings) -> dict[str, tuple[Callable[[str], Mapping], tuple[bytes, ...], Callable[[Any, bytes], Any]]]:
    """Return each operation's mapping, cells and client call, by the case's name."""
    return {name: (mapping, values, send) for name, mapping, values, send in WORKLOADS}


def measure(settings: Settings) -> Iterator[Case]:
    """Yield a case for each operation."""
    rows = settings.rows(_ROWS)
    ids = [pa.array(range(start, min(start + ARROW_ROWS, rows)), pa.int64()) for start in range(0, rows, ARROW_ROWS)]
    batches = [
        pa.record_batch({"id": i, "n": pa.array([1] * len(i), pa.int64()), "v": pa.array([_VALUE] * len(i))})
        for i in ids
    ]
    with LocalHBase(heap="1g") as server:
        create_table(_sink(server.zookeeper, Put("{id}", {"d:v": "v"})))
        table: Any = Client({"hbase.zookeeper.quorum": server.zookeeper}).get_table(b"default", _TABLE.encode())
        for name, (mapping, values, send) in settings.wanted(cases(settings)):
            workload = _Workload(server.zookeeper, table, rows, mapping)
            sides = {
                TWOPC: lambda w=workload: w.by_sink(batches),
                CLIENT: lambda w=workload, s=send: w.by_client(s),  # type: ignore[misc] # mypy cannot infer a default's type
                BATCHED: lambda w=workload, v=values: w.batched(v),  # type: ignore[misc] # mypy cannot infer a default's type
            }
            ran, _ = in_turn(settings.rounds, sides)
            counted = {side: rows * len(found) for side, found in ran.items()}
            facts = step_facts(workload.steps)
            yield Case(name=name, unit="rows/s", samples=ran, counted=counted, facts=facts)
        table.close()


@dataclass
class _Workload:
    """Run one operation on each side. Each run writes and counts its own rows."""

    zookeeper: str
    table: Any
    rows: int
    mapping: Callable[[str], Mapping]
    steps: list[Steps] = field(default_factory=list)

    def by_client(self, send: Callable[[Any, bytes], Any]) -> float:
        """Return the client's rows per second, with one call per row."""
        prefix = self._prefix()
        keys = [f"{prefix}{number}".encode() for number in range(self.rows)]
        began = time.perf_counter()
        for key in keys:
            send(self.table, key)
        return self._rate(time.perf_counter() - began, prefix)

    def batched(self, values: tuple[bytes, ...]) -> float:
        """Return the client's rows per second, with many rows per call."""
        prefix = self._prefix()
        sink = _sink(self.zookeeper, self.mapping(prefix))
        client = sink.create_client()
        with contextlib.closing(client):
            began = time.perf_counter()
            keys = [f"{prefix}{number}".encode() for number in range(self.rows)]
            mutations = _mutations(sink.mapping, keys, values)
            ops = [Op(_TABLE, mutation.row, mutations=(mutation,)) for mutation in mutations]
            if client.execute(ops) != [True] * self.rows:
                raise AssertionError("not written")
            return self._rate(time.perf_counter() - began, prefix)

    def by_sink(self, batches: list[pa.RecordBatch]) -> float:
        """Return the sink's rows per second."""
        prefix = self._prefix()
        self.steps.append(run_task(_sink(self.zookeeper, self.mapping(prefix)), batches))
        return self._rate(self.steps[-1].total_s, prefix)

    @staticmethod
    def _prefix() -> str:
        return f"{uuid.uuid4().hex[:8]}:"

    def _rate(self, took_s: float, prefix: str) -> float:
        """Count the run's rows, and return its rate."""
        found = count_rows(self.table, prefix)
        if found != self.rows:
            raise WrongCountError(f"HBase has {found} rows with {prefix} instead of {self.rows}")
        return self.rows / took_s


def count_rows(table: Any, prefix: str) -> int:
    """Count a table's rows whose keys begin with the prefix, which ends with a colon."""
    # Iterating over the scanner would send one request per row.
    with table.scan(Scan(prefix.encode(), prefix.replace(":", ";").encode())) as scanner:
        return sum(map(len, iter(partial(scanner.next_batch, _ROWS_PER_REQUEST), [])))


def _sink(zookeeper: str, mapping: Mapping) -> HBaseSink:
    return HBaseSink(name=f"b{uuid.uuid4().hex[:8]}", zookeeper=zookeeper, table=_TABLE, mapping=mapping)


def _mutations(mapping: Mapping, keys: list[bytes], values: tuple[bytes, ...]) -> Iterator[Message]:
    """Yield a message for each row, as an HBase client makes it. Copying a template takes half as long as building a message."""
    kind = getattr(client_pb.MutationProto, mapping.operation)
    shape = client_pb.MutationProto(row=b"", mutate_type=kind, durability=DURABLE)
    for family, qualifier in mapping.places:
        shape.column_value.add(family=family).qualifier_value.add(qualifier=qualifier)
    for key in keys:
        message = client_pb.MutationProto()
        message.CopyFrom(shape)
        message.row = key
        for column, value in zip(message.column_value, values, strict=True):
            column.qualifier_value[0].value = value
        yield message


def create_table(sink: HBaseSink) -> None:
    """Create the table, and wait until HBase serves it."""
    families = [hbase_pb.ColumnFamilySchema(name=b"d")]
    client = sink.create_client()
    with contextlib.closing(client):
        client.cluster.call_master(lambda master: master.create_table(*name_parts(_TABLE), families))
        deadline = time.monotonic() + _TIMEOUT_S
        while time.monotonic() < deadline:
            with contextlib.suppress(*FAILURES):
                client.cluster.region_of(_TABLE, b"")
                return
            time.sleep(0.05)
        raise AssertionError("the table is not served")
