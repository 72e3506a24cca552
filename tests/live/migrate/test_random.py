"""Random pipelines are cut over and taken back: other keys, no natural key, duplicate rows, headers, several attempts."""

from __future__ import annotations

import json
import os
import random
from collections import Counter, defaultdict
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import pytest

from tests.live.migrate.support import OldPipeline, StopError
from tests.reader import records

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from pyspark.sql import DataFrame, SparkSession

    from tests.live.services import KafkaService
    from twopc.integration.services.old_kafka import LocalOldKafka

pytestmark = [pytest.mark.timeout(1800), pytest.mark.filterwarnings("ignore:unclosed:ResourceWarning")]

_PIPELINES: Final = int(os.environ.get("TWOPC_PIPELINES", "3"))
_TEXT: Final = "CAST(value AS STRING)"
_KEYS: Final = {
    "as they are": "key",
    "none": "CAST(NULL AS BINARY) AS key",
    "some are null": "IF(crc32(value) % 3 = 0, NULL, key) AS key",
    "some are empty": "IF(crc32(value) % 3 = 0, CAST('' AS BINARY), key) AS key",
    "one for each row": "value AS key",
}
_HEADERS: Final = {
    "no headers": None,
    "headers": f"array(named_struct('key', 'h', 'value', CAST({_TEXT} AS BINARY))) AS headers",
    "some have headers": (
        "IF(crc32(value) % 2 = 0, NULL, array(named_struct('key', 'h', 'value', CAST(NULL AS BINARY)), "
        f"named_struct('key', 'h', 'value', CAST({_TEXT} AS BINARY)))) AS headers"
    ),
}
#: The value's expression, and the cut-over's options that recognize it.
_VALUES: Final[dict[str, tuple[str, tuple[str, ...]]]] = {
    "as they are": ("value", ()),
    "equal rows": ("value", ("--clock-skew-ms", "0")),
    "new in each attempt": (f"to_json(named_struct('id', {_TEXT}, 'at', uuid())) AS value", ("--key", "json:$.id")),
}


@dataclass(frozen=True)
class Shape:
    """A pipeline. The text of an instance describes the pipeline."""

    keys: str
    headers: str
    values: str
    partitions: int
    fed: int
    batch: int
    attempts: int
    share: float
    is_doubled_before: bool

    @property
    def columns(self) -> tuple[str, ...]:
        headers = _HEADERS[self.headers]
        return (_KEYS[self.keys], _VALUES[self.values][0], *([headers] if headers else []))


def drawn(chance: random.Random) -> Shape:
    return Shape(
        keys=chance.choice(list(_KEYS)),
        headers=chance.choice(list(_HEADERS)),
        values=chance.choice(list(_VALUES)),
        partitions=chance.choice([1, 2, 3, 5]),
        fed=chance.randint(60, 120),
        batch=chance.randint(20, 50),
        attempts=chance.randint(1, 3),
        share=chance.choice([0.0, 0.3, 0.6, 1.0]),
        is_doubled_before=chance.random() < 0.5,
    )


def write_in_part(pipeline: OldPipeline, spark: SparkSession, shape: Shape, seed: int) -> None:
    """The old query, by hand in foreachBatch with Spark's writer: batch 0 once or twice, parts of batch 1 in some attempts."""
    attempts = Counter[int]()

    def save(batch: DataFrame) -> None:
        writer = batch.write.format("kafka").option("kafka.bootstrap.servers", pipeline.servers)
        writer.option("topic", pipeline.topic).save()

    def write(batch: DataFrame, batch_id: int) -> None:
        attempts[batch_id] += 1
        if batch_id == 0:
            save(batch)
            if shape.is_doubled_before and attempts[0] == 1:
                raise StopError
            return
        save(batch.sample(shape.share, seed + attempts[1]) if shape.share < 1 else batch)
        raise StopError

    while attempts[1] < shape.attempts:
        pipeline.fail(spark, write, max_offsets=shape.batch)


def ids(pipeline: OldPipeline, shape: Shape) -> Counter[str]:
    """The identity of a row, which does not depend on who wrote it: the source's value."""
    return pipeline.visible_ids() if shape.values == "new in each attempt" else pipeline.visible()


def facts_by_id(pipeline: OldPipeline, shape: Shape) -> dict[str, set[Any]]:
    """The keys and headers of each row's records. Records with the same id must have the same key and headers."""
    found: dict[str, set[Any]] = defaultdict(set)
    for message in records(pipeline.servers, pipeline.topic):
        value = (message.value() or b"").decode()
        row_id = json.loads(value)["id"] if shape.values == "new in each attempt" else value
        found[row_id].add((message.key(), tuple(message.headers() or ())))
    return found


def partitions_by_key(pipeline: OldPipeline) -> dict[bytes, set[int | None]]:
    found: dict[bytes, set[int | None]] = defaultdict(set)
    for message in records(pipeline.servers, pipeline.topic):
        key: Any = message.key()
        if key:
            found[key].add(message.partition())
    return found


def cut_over_and_back(pipeline: OldPipeline, spark: SparkSession, shape: Shape, seed: int) -> None:
    different = 7 if shape.values == "equal rows" else None
    pipeline.feed(shape.fed, values=different)
    write_in_part(pipeline, spark, shape, seed)
    before = ids(pipeline, shape)
    first, second = (Counter(pipeline.of_batch(number)) for number in (0, 1))
    of_first = first + first if shape.is_doubled_before else first
    pipeline.cut_over("--apply", *_VALUES[shape.values][1])
    pipeline.run_new(spark, max_offsets=shape.batch)
    rest = Counter(pipeline.given) - first - second
    wanted = of_first + (second | (before - of_first)) + rest
    assert ids(pipeline, shape) == wanted
    pipeline.command("rollback")
    pipeline.feed(20, values=different)
    pipeline.run_old(spark)
    assert ids(pipeline, shape) == wanted + Counter(pipeline.given[-20:])
    assert all(len(partitions) == 1 for partitions in partitions_by_key(pipeline).values())
    if shape.headers == "no headers":  # the old function writes no headers during the rollback
        assert all(len(facts) == 1 for facts in facts_by_id(pipeline, shape).values())


@pytest.mark.parametrize("pipelines", [1, pytest.param(_PIPELINES, marks=pytest.mark.whole)], ids=["one", "many"])
def test_random_pipelines_lose_and_duplicate_nothing(
    pipelines: int,
    old_kafka: LocalOldKafka,
    kafka: KafkaService,
    tmp_path: Path,
    spark: SparkSession,
    add_summary: Callable[[str], None],
) -> None:
    """``TWOPC_PIPELINES=30`` sets how many `make whole` runs."""
    seed = random.SystemRandom().randrange(1 << 32)
    add_summary(f"seed {seed}, {pipelines} pipelines")
    chance = random.Random(seed)
    for number in range(pipelines):
        shape = drawn(chance)
        (root := tmp_path / str(number)).mkdir()
        servers = old_kafka.bootstrap_servers
        pipeline = OldPipeline(servers, root, servers=kafka.bootstrap_servers, partitions=shape.partitions)
        pipeline.columns = shape.columns
        try:
            cut_over_and_back(pipeline, spark, shape, seed + 1000 * number)
        except BaseException as error:
            raise AssertionError(f"seed {seed}, pipeline {number}: {shape}") from error
