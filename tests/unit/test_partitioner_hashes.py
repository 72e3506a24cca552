"""`twopc migrate preflight` places a key as librdkafka does, for each partitioner that it compares."""

from __future__ import annotations

import ctypes

import confluent_kafka
import pytest

from twopc.integration.migrate.preflight import _PARTITIONERS, _UNASSIGNED

KEYS = [
    b"k",
    b"21",
    b"foobar",
    b"a-little-bit-long-string",
    b"\x00\xff" * 9,
    *(b"key-%d" % number for number in range(200)),
]
PARTITIONS = 7


@pytest.mark.parametrize("partitioner", ["murmur2", "consistent", "fnv1a"])
def test_each_partitioner_hash_equals_that_of_librdkafka(partitioner: str) -> None:
    place = getattr(ctypes.CDLL(confluent_kafka.cimpl.__file__), f"rd_kafka_msg_partitioner_{partitioner}")
    place.restype = ctypes.c_int32
    place.argtypes = [
        *(ctypes.c_void_p, ctypes.c_char_p, ctypes.c_size_t),
        *(ctypes.c_int32, ctypes.c_void_p, ctypes.c_void_p),
    ]
    ours = _PARTITIONERS[_UNASSIGNED[partitioner]]
    for key in KEYS:
        assert ours(key) % PARTITIONS == place(None, key, len(key), PARTITIONS, None, None), key
    assert _UNASSIGNED[f"{partitioner}_random"] == _UNASSIGNED[partitioner]
