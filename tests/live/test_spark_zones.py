"""The session's time zone affects only Spark: in any zone, sinks receive timestamps in UTC."""

from __future__ import annotations

import contextlib
import json
from typing import TYPE_CHECKING, Any, Final

import pytest

from tests.live.file_query import Query, kafka_sink, redis_client, unique
from tests.live.redis.conftest import redis_server
from tests.live.spark_support import as_arrow, spark
from tests.reader import records
from twopc.integration.spark.frame import arrange
from twopc.integration.spark.views import CHECKSUM
from twopc.sinks.kafka import KafkaSink
from twopc.sinks.redis import RedisSink
from twopc.sinks.redis.mappings import Set

if TYPE_CHECKING:
    from pathlib import Path

    import pyarrow as pa
    from pyspark.sql import SparkSession

    from tests.live.redis.services import RedisService
    from tests.live.services import KafkaService

__all__ = ["redis_server", "spark"]

pytestmark = pytest.mark.filterwarnings("ignore:unclosed:ResourceWarning")

SETTING: Final = "spark.sql.session.timeZone"
#: Time zones with their offsets in hours. Arrow and Python know only the last four.
ZONES: Final = {
    "GMT+8": 8,
    "UTC+01:00": 1,
    "GMT-03:30": -3.5,
    "UT": 0,
    "Z": 0,
    "ACT": 9.5,
    "EST": -5,
    "+08:00": 8,
    "Asia/Shanghai": 8,
    "UTC": 0,
}
AT: Final = "2020-01-01T00:00:00.123456Z"
NTZ: Final = "2020-01-01T00:00:00"
#: What a dead letter contains for each column.
COLUMNS: Final = {
    "at": AT,
    "ARRAY(at, NULL) AS list": [AT, None],
    "NAMED_STRUCT('inner', NAMED_STRUCT('at', at)) AS struct": {"inner": {"at": AT}},
    "MAP(at, at) AS map": [[AT, AT]],
    "ARRAY(NAMED_STRUCT('map', ARRAY(at))) AS deep": [{"map": [AT]}],
    "ARRAY(MAP('k', at)) AS maps": [[["k", AT]]],
    "ARRAY(MAP('k', 1)) AS numbers": [[["k", 1]]],
    "NAMED_STRUCT('x', at, 'x', 1) AS twice": f'{{"x":"{AT}","x":1}}',
    "TIMESTAMP_NTZ'2020-01-01 00:00:00' AS ntz": NTZ,
    "DATE'2020-01-01' AS day": "2020-01-01",
    "TIMESTAMP_SECONDS(1700000000000L) AS far": {"microseconds": 1_700_000_000_000_000_000},
}


def _cases() -> list[Any]:
    sample = {("GMT+8", "tasks", False), ("UTC+01:00", "driver", True)}
    every = [(zone, direct, False) for zone in ZONES for direct in ("tasks", "driver")]
    return [
        pytest.param(case, marks=() if case in sample else (pytest.mark.whole,)) for case in sorted(sample | {*every})
    ]


@pytest.mark.parametrize("case", _cases(), ids=str)
def test_every_sink_receives_timestamps_in_utc_and_a_cast_to_text_keeps_the_session_time_zone(
    case: tuple[str, str, bool],
    kafka: KafkaService,
    redis_server: RedisService,
    spark: SparkSession,
    tmp_path: Path,
) -> None:
    zone, direct, is_staged = case
    events, letters, name = kafka_sink(kafka.bootstrap_servers), kafka_sink(kafka.bootstrap_servers), unique()
    times = RedisSink(name=name, url=redis_server.url, mapping=Set(f"{name}:{{at}}", "at"))
    settings = {"dead_letter": letters, "write_by": direct, "staging": is_staged}
    columns = ["CAST(IF(n = 2, -1, 0) AS INT) AS partition", "at AS timestamp", "CAST(at AS STRING) AS value"]
    query = Query(
        spark,
        tmp_path,
        (events, times),
        settings,
        plan=lambda frame: frame.selectExpr("n", "TIMESTAMP_MICROS(1577836800123456) AS at").selectExpr(
            *columns, *COLUMNS
        ),
    )
    query.feed({"id": "a", "n": 1}, {"id": "b", "n": 2})
    spark.conf.set(SETTING, zone)
    try:
        if is_staged:
            query.fail_at("driver.decided")
            spark.conf.set(SETTING, "ACT")  # the batch is completed by a run in another zone
            with contextlib.closing(redis_client(redis_server)) as client:
                client.delete(*client.scan_iter(f"twopc:{name}:*:slice:*", count=1000))
        query.run()
    finally:
        spark.conf.unset(SETTING)
    [event] = records(kafka.bootstrap_servers, str(events.topic))
    minutes = int(ZONES[zone] * 60) % (24 * 60)
    day = "2019-12-31" if ZONES[zone] < 0 else "2020-01-01"
    assert event.value() == f"{day} {minutes // 60:02}:{minutes % 60:02}:00.123456".encode()
    assert event.timestamp()[1] == 1_577_836_800_123
    with contextlib.closing(redis_client(redis_server)) as client:
        assert client.get(f"{name}:2020-01-01 00:00:00.123456Z") == b"2020-01-01 00:00:00.123456Z"
    [letter] = records(kafka.bootstrap_servers, str(letters.topic))
    found = json.loads(letter.value() or b"")
    assert {column: found[column.rpartition(" ")[2]] for column in COLUMNS} == COLUMNS


def test_a_replay_in_another_time_zone_has_the_same_checksums(spark: SparkSession) -> None:
    """If the zone mattered, rows that a decided batch has lost could not be rewritten."""
    letters, events = (KafkaSink(name=name, bootstrap_servers="nowhere:1", topic="t") for name in ("letters", "events"))
    found = []
    for zone in ("UTC", "GMT+8", "America/St_Johns"):
        spark.conf.set(SETTING, zone)
        try:
            frame = spark.range(2).selectExpr("TIMESTAMP_SECONDS(id) AS at").selectExpr("'v' AS value", *COLUMNS)
            rows = arrange("", frame, (events, letters), select={}, dead_letter=letters.name)
            found.append(as_arrow(rows.frame()).column(CHECKSUM).to_pylist())
        finally:
            spark.conf.unset(SETTING)
    assert found[0] == found[1] == found[2]
    assert len(set(found[0])) == 2


def test_dead_letters_do_not_depend_on_the_meaning_of_double_quotes(spark: SparkSession) -> None:
    """With this setting, Spark takes a text in double quotes for a column, and every batch would fail."""
    letters = KafkaSink(name="letters", bootstrap_servers="nowhere:1", topic="t")
    frame = spark.range(2).selectExpr("NAMED_STRUCT('x', TIMESTAMP_SECONDS(id), 'x', 1) AS twice")

    def found() -> pa.Table:
        return as_arrow(arrange("", frame, (letters,), select={}, dead_letter=letters.name).frame())

    expected = found()
    assert "1970-01-01T00:00:01.000000Z" in str(expected.column(0)[1])
    names = ("spark.sql.ansi.enabled", "spark.sql.ansi.doubleQuotedIdentifiers")
    for name in names:
        spark.conf.set(name, "true")
    try:
        assert found().equals(expected)
    finally:
        for name in names:
            spark.conf.unset(name)
