"""This version reads what version 0.1 wrote; ``data/format-1.json`` holds bytes that version 0.1 stored."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
import pytest

from twopc.attempt import Attempt
from twopc.binding import Binding
from twopc.codec import decode, encode
from twopc.errors import DecisionLogDamagedError
from twopc.files import LocalFiles
from twopc.records import Acquired, Begin, Decision, Record, Repair, TaskReport, Truncation
from twopc.registers import RegisterLog
from twopc.sinks.hbase.control import State, decode_state
from twopc.sinks.hbase.staging import HBaseHandle
from twopc.sinks.kafka.handle import KafkaHandle
from twopc.sinks.kafka.markers import Marker, decode_marker
from twopc.sinks.redis.keys import RedisHandle

if TYPE_CHECKING:
    from collections.abc import Sequence

STORED: dict[str, Any] = json.loads((Path(__file__).parent / "data" / "format-1.json").read_text())
KAFKA = {
    "uuid": "0b9c4c3a7a6f4c6a8b4f1f0c5b7d2e11",
    "transactional_id": "orders.3.5f0e.0",
    "producer_id": 4001,
    "producer_epoch": 7,
    "marker_partition": 2,
    "rows": 2,
    "partitions": ["orders-enriched:0-1", "twopc-ledger-orders:2"],
}
REDIS = {"uuid": "6a1b", "driver_epoch": 3, "groups": [[-1, 1, 2]], "rows": 2, "checksum": "ab12"}
HBASE = {
    "uuid": "7c2d",
    "driver_epoch": 3,
    "partition": 0,
    "table": "t",
    "operation": "PUT",
    "chunks": 1,
    "distinct": True,
    "rows": 2,
    "checksum": "cd34",
}
#: One sink is named like a renamed field: sink names must stay as they are.
TASK = TaskReport(
    partition=0,
    rows=2,
    checksum=2**63 + 5,
    handles={"orders": KAFKA, "batch": REDIS, "cells": HBASE},
    staged="3/12/aa.arrow",
)
BEGIN = Begin(query_id="q-1", first_batch=12, prior_offsets=('{"t":{"0":5}}',), ends="q-0")
DECISION = Decision(
    query_id="q-1",
    batch_id=12,
    attempt=Attempt(3, 1),
    offsets=('{"t":{"0":7}}',),
    tasks=(TASK, TaskReport(partition=1, rows=0, checksum=0)),
    scan_start={
        "orders": {"markers": {"1": 0, "2": 5}, "outputs": {"orders-enriched": 4}},
        "batch": {"base": 1700000000000},
        "cells": {"base": 1700000000001},
    },
    kind="rewrite",
)
RECORDS: Sequence[Record] = (
    Acquired(query_id="q-1", run="run-1", deciding_log="twopc-ledger-orders", driver="host:1", at_ms=1700000000000),
    BEGIN,
    DECISION,
    Repair(query_id="q-1", batch_id=12, attempt=Attempt(3, 2), tasks=(TASK,)),
    Truncation(log_start=9, begin=Begin(query_id="q-1", first_batch=12, prior_offsets=()), ended=("q-0",)),
)


@pytest.mark.parametrize("number", range(len(RECORDS)))
def test_each_record_of_format_1_is_read(number: int) -> None:
    frames = [(at, frame.encode()) for at, frame in enumerate(STORED["frames"][number])]
    assert [entry.record for entry in decode(frames)] == [RECORDS[number]]


def test_a_format_1_record_in_several_frames_is_read() -> None:
    assert len(STORED["cut"]) > 1
    assert [entry.record for entry in decode(enumerate(map(str.encode, STORED["cut"])))] == [DECISION]


def test_new_records_are_written_in_format_2() -> None:
    for record in RECORDS:
        assert all(frame.startswith(b"twopc/2 ") for frame in encode(record, max_bytes=10_000))


def test_an_altered_format_1_record_is_damage() -> None:
    frame = STORED["frames"][1][0].encode()
    with pytest.raises(DecisionLogDamagedError, match="checksum"):
        decode([(0, frame.replace(b'"first_batch":12', b'"first_batch":13'))])


@pytest.mark.parametrize(("kind", "name"), [(KafkaHandle, "orders"), (RedisHandle, "batch"), (HBaseHandle, "cells")])
def test_a_handle_of_format_1_is_read(kind: type[Any], name: str) -> None:
    (entry,) = decode([(0, STORED["frames"][2][0].encode())])
    assert isinstance(entry.record, Decision)
    found = msgspec.convert(entry.record.tasks[0].handles[name], kind)
    assert msgspec.to_builtins(found) == msgspec.to_builtins(msgspec.convert(TASK.handles[name], kind))
    assert getattr(found, "driver_epoch", 3) == 3


def test_registers_of_format_1_are_read(tmp_path: Path) -> None:
    (tmp_path / "registers").mkdir()
    for name, text in STORED["registers"].items():
        (tmp_path / "registers" / name).write_text(text)
    contents = RegisterLog(LocalFiles(tmp_path)).inspect()
    assert [entry.record for entry in [*contents.entries][1:]] == [BEGIN, DECISION]


def test_a_binding_of_version_0_1_still_binds(tmp_path: Path) -> None:
    for name, text in STORED["binding"].items():
        (tmp_path / name).write_text(text)
    assert Binding(LocalFiles(tmp_path)).log == "registers"


def test_a_marker_of_format_1_is_read() -> None:
    expected = Marker(uuid=KAFKA["uuid"], query_id="q-1", batch_id=12, attempt=(3, 1), task=0, rows=2)  # type: ignore[arg-type]
    assert decode_marker(STORED["marker"].encode()) == expected


def test_the_hbase_control_cell_of_format_1_is_read() -> None:
    expected = State(id="i", run="run-1", query_id="q-1", driver_epoch=3, version=5, decided=4, revision=9)
    assert decode_state(STORED["hbase_control"].encode()) == expected
