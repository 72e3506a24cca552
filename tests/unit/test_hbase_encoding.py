"""The staged data of a task has the bytes of HBase's own messages, as in earlier versions."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest

from tests.arrow_rows import KINDS, sliced, texts
from twopc.integration.spark.views import View
from twopc.sinks.hbase import HBaseSink
from twopc.sinks.hbase.mappings import Append, Delete, Increment, Mapping, Put
from twopc.sinks.hbase.messages import client_pb, region
from twopc.sinks.hbase.row_ops import DURABLE
from twopc.sinks.hbase.staging import HBaseHandle, pack, unpack

if TYPE_CHECKING:
    from collections.abc import Mapping as AnyMapping

    from twopc.sinks.hbase.mappings import Values

#: Chunks that were staged by an earlier version, which built a message for each row.
STORED: dict[str, str] = json.loads((Path(__file__).parent / "data" / "hbase-chunks-1.json").read_text())
ROWS = pa.record_batch({"id": [1, 2], "v": ["a", "b" * 130], "w": ["", "\0"], "n": [1, -2]})
MAPPINGS: dict[str, Mapping] = {
    "Put": Put("r:{id}", {"d:v": "v", "e:w": "w", "d:n": "n"}),
    "Increment": Increment("r:{id}", {"d:n": "n"}),
    "Append": Append("r:{id}", {"d:v": "v"}),
    "Delete row": Delete("r:{id}"),
    "Delete cells": Delete("r:{id}", ("d:v", "e:w", "d:n")),
}
#: Sizes around each length whose encoding needs another byte, for the value and for the messages around the value.
SIZES = [0, 1, *range(60, 130), *range(16_340, 16_390), 2_097_110, 2_097_152, 5_000_000]


def by_messages(mapping: Mapping, encoded: AnyMapping[bytes, Values]) -> bytes:
    """A chunk as the library's messages are encoded."""
    chunk = client_pb.RegionAction(region=region(b""))
    for row, values in encoded.items():
        mutation: Any = chunk.action.add().mutation
        mutation.row, mutation.durability = row, DURABLE
        mutation.mutate_type = getattr(client_pb.MutationProto, mapping.operation)
        columns: dict[bytes, Any] = {}
        for number, (family, qualifier) in enumerate(mapping.places):
            if family not in columns:
                columns[family] = mutation.column_value.add(family=family)
            cell = columns[family].qualifier_value.add(qualifier=qualifier)
            if mapping.operation == "DELETE":
                cell.delete_type = client_pb.MutationProto.DELETE_MULTIPLE_VERSIONS
            else:
                cell.value = values[number]
    return bytes(chunk.SerializeToString())


def staged(mapping: Mapping, rows: pa.RecordBatch) -> bytes:
    return pack(mapping.actions(mapping.encode(rows).items()))


def test_a_handle_shows_the_table_to_which_its_rows_belong_and_the_mapping() -> None:
    """If the sink's table or mapping has changed, a repair would write lost rows to the new table, or in another way."""
    handle = HBaseHandle(
        uuid="u",
        driver_epoch=0,
        rows=1,
        checksum="",
        partition=0,
        table="ns:old",
        operation="PUT",
        chunks=1,
        distinct=True,
    )
    sink = HBaseSink(name="cells", zookeeper="nowhere:1", table="ns:new", mapping=Delete("cache"))
    assert set(sink.destinations_of(handle)) == {"table ns:old with the mapping Put"}


def test_a_row_without_a_column_in_its_key_is_deleted() -> None:
    """The batch's view of this sink has rows, but no column."""
    mapping = Delete("cache")
    assert not mapping.columns
    assert list(mapping.encode(View(columns=()).of(ROWS))) == [b"cache"]


@pytest.mark.parametrize("name", STORED)
def test_this_version_stages_the_same_bytes_as_earlier_versions(name: str) -> None:
    mapping, stored = MAPPINGS[name], bytes.fromhex(STORED[name])
    assert staged(mapping, ROWS) == stored
    assert [action.mutation.row for action in unpack(stored).action] == [b"r:1", b"r:2"]


@pytest.mark.parametrize("size", SIZES)
def test_every_length_is_encoded_as_messages_encode_it(size: int) -> None:
    mapping = Put("{id}", {"d:v": "v", "long-family:w": "w"})
    encoded = {b"k" * min(size + 1, 32_767): (b"x" * size, b"y" * (size // 2))}
    assert pack(mapping.actions(encoded.items())) == by_messages(mapping, encoded)


@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind not in {"binary_view", "fixed_size_binary"}])
def test_random_rows_are_encoded_as_messages_encode_them(kind: str) -> None:
    chance = random.Random(kind)
    for _ in range(20):
        rows = _random_rows(chance, kind)
        for mapping in (
            Put("r:{id}", {"d:n": "n", "e:v": "v", "d:w": "v", "d:f": "f", "e:b": "b", "f:t": "t"}),
            Increment("r:{id}", {"d:n": "n", "d:m": "n"}),
            Append("r:{id}", {"e:v": "v", "e:w": "v", "e:d": "d"}),
            Delete("r:{id}", ("e:v", "d:v", "e:w")),
            Delete("{id}"),
        ):
            encoded = mapping.encode(rows)
            assert pack(mapping.actions(encoded.items())) == by_messages(mapping, encoded)


def _random_rows(chance: random.Random, kind: str) -> pa.RecordBatch:
    """Rows of all plain types; some have a key in common."""
    count = chance.randrange(1, 40)
    return pa.record_batch(
        {
            "id": pa.array([chance.randrange(60) for _ in range(count)]),
            "n": pa.array([chance.randrange(-(2**50), 2**50) for _ in range(count)], pa.int64()),
            "v": sliced(chance, KINDS[kind](texts(chance, count, nulls=0))),
            "f": pa.array([chance.random() for _ in range(count)]),
            "b": pa.array([chance.random() < 0.5 for _ in range(count)]),
            "d": pa.array([chance.randrange(20_000) for _ in range(count)], pa.int32()).cast(pa.date32()),
            "t": pa.array([chance.randrange(2**50) for _ in range(count)], pa.timestamp("us")),
        }
    )
