"""Numbers that a user passes to a sink: each sink rejects the same values, and the message names the argument."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from twopc.errors import ConfigurationError
from twopc.sinks.delta import DeltaSink
from twopc.sinks.hbase import HBaseSink, Put
from twopc.sinks.iceberg import IcebergSink
from twopc.sinks.kafka import KafkaSink
from twopc.sinks.postgres import PostgresSink
from twopc.sinks.redis import RedisSink, Set

if TYPE_CHECKING:
    from collections.abc import Callable

_SINKS: dict[str, Callable[..., object]] = {
    "KafkaSink": lambda **given: KafkaSink(name="s", bootstrap_servers="b:1", **given),
    "RedisSink": lambda **given: RedisSink(name="s", url="redis://h", mapping=Set(key="{k}", value="v"), **given),
    "HBaseSink": lambda **given: HBaseSink(
        name="s", zookeeper="z:1", table="t", mapping=Put(row="{k}", cells={"d:v": "v"}), **given
    ),
    "PostgresSink": lambda **given: PostgresSink(name="s", dsn="host=h", table="t", **given),
    "IcebergSink": lambda **given: IcebergSink(name="s", catalog={"type": "rest"}, table="a.t", **given),
    "DeltaSink": lambda **given: DeltaSink(name="s", table_uri="/t", **given),
}
_NUMBERS = [
    *[(sink, "timeout_ms") for sink in _SINKS],
    *[(sink, argument) for sink in ("RedisSink", "HBaseSink") for argument in ("chunk_rows", "chunk_bytes")],
    ("RedisSink", "wait_timeout_ms"),
    ("IcebergSink", "orphan_age_ms"),
]


@pytest.mark.parametrize(("sink", "argument"), _NUMBERS)
@pytest.mark.parametrize("value", [0, -1, "30s", None, True, float("nan"), float("inf")])
def test_an_argument_that_is_not_a_positive_number_is_rejected_by_its_name(
    sink: str, argument: str, value: Any
) -> None:
    with pytest.raises(ConfigurationError, match=rf"{sink}\({argument}={value!r}\).* positive number"):
        _SINKS[sink](**{argument: value})


@pytest.mark.parametrize(("sink", "argument"), _NUMBERS)
def test_a_positive_number_is_accepted(sink: str, argument: str) -> None:
    assert getattr(_SINKS[sink](**{argument: 5_000}), argument) == 5_000
