"""Tables and arguments that the Delta sink rejects, with an error that identifies them."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest
from deltalake import DeltaTable

from tests.unit.delta_support import SCHEMA, Shop
from tests.unit.lake_support import evidence, prepare
from twopc import ConfigurationError, DeltaSink
from twopc.attempt import Evidence
from twopc.sinks.delta.objections import retention_ms
from twopc.testing.contract.drivers import Driver, close_opened

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path


@pytest.fixture(autouse=True)
def _closed() -> Iterator[None]:
    yield
    close_opened()


def made(
    directory: Path,
    column: Mapping[str, Any] | None = None,
    *,
    protocol: Mapping[str, Any] | None = None,
    partitions: tuple[str, ...] = (),
    **configuration: str,
) -> DeltaSink:
    """A table, written by hand, because deltalake cannot make most of these."""
    fields = [{"name": "value", "type": "long", "nullable": True, "metadata": {}}]
    if column:
        fields.append({"name": "odd", "type": "long", "nullable": True, "metadata": {}, **column})
    metadata = {
        "id": "3b6c4f6a-6f6e-4d5a-9f57-0a4f6a0f4d11",
        "format": {"provider": "parquet", "options": {}},
        "schemaString": json.dumps({"type": "struct", "fields": fields}),
        "partitionColumns": list(partitions),
        "configuration": configuration,
        "createdTime": 1,
    }
    log = directory / "_delta_log"
    log.mkdir()
    actions = [{"protocol": protocol or {"minReaderVersion": 1, "minWriterVersion": 2}}, {"metaData": metadata}]
    (log / f"{0:020}.json").write_text("\n".join(map(json.dumps, actions)))
    return DeltaSink(name="orders", table_uri=str(directory), timeout_ms=1_000)


def with_features(*writer: str, reader: tuple[str, ...] = ()) -> dict[str, Any]:
    level = 3 if reader else 1
    features = {"writerFeatures": [*writer, *reader]} | ({"readerFeatures": list(reader)} if reader else {})
    return {"minReaderVersion": level, "minWriterVersion": 7, **features}


@pytest.mark.parametrize("name", ["a b", "a#b", "a?b", "a+b", "ä", "a:b", "a*b", "[a]", "{a}", "'a\""])
@pytest.mark.parametrize("is_uri", [True, False])
def test_a_directorys_name_may_contain_unusual_characters(tmp_path: Path, name: str, *, is_uri: bool) -> None:
    path = tmp_path / name
    DeltaTable.create(str(path), SCHEMA)
    sink = DeltaSink(name="orders", table_uri=path.as_uri() if is_uri else str(path))
    driver = Driver(sink)
    scan_start = driver.begin()
    handle = prepare(driver, sink, 1, 2)
    assert evidence(driver, [handle], scan_start) == [Evidence.COMMITTED]
    assert DeltaTable(str(path)).to_pyarrow_table().column("value").to_pylist() == [1, 2]
    assert [one.name for one in tmp_path.iterdir()] == [name]


@pytest.mark.parametrize(
    ("how", "why"),
    [
        ({"delta.columnMapping.mode": "name"}, "uses column mapping"),
        ({"delta.setTransactionRetentionDuration": "interval 30 days"}, "batches expire. Remove this property: ALTER TABLE"),
        ({"delta.constraints.positive": "value > 0"}, r"has the constraint 'positive' \(value > 0\)"),
        ({"delta.deletedFileRetentionDuration": "interval 30 minutes"}, "VACUUM may delete"),
        ({"delta.deletedFileRetentionDuration": "a week"}, "cannot parse"),
        ({"delta.deletedFileRetentionDuration": "interval nan days"}, "cannot parse"),
        ({"delta.deletedFileRetentionDuration": ""}, "cannot parse"),
        *(
            (
                {"delta.dataSkippingNumIndexedCols": value},
                f"has delta.dataSkippingNumIndexedCols='{value}', but it must be an integer of at least -1.*Nothing was written",
            )
            for value in ("garbage", "", "1.5", "-2")
        ),
        ({"column": {"metadata": {"delta.generationExpression": "value + 1"}}}, "'odd', which is generated"),
        ({"column": {"metadata": {"delta.identity.start": 1}}}, "'odd', which is an identity column"),
        ({"column": {"metadata": {"delta.invariants": "{}"}}}, "'odd', which has an invariant"),
        (
            {"column": {"type": "string", "metadata": {"__CHAR_VARCHAR_TYPE_STRING": "varchar(9)"}}},
            "'odd', which is CHAR or VARCHAR",
        ),
        ({"column": {"type": "void"}}, "'odd' of type void"),
        (
            {
                "column": {
                    "type": {
                        "type": "struct",
                        "fields": [
                            {"name": "in", "type": "long", "nullable": True, "metadata": {"delta.invariants": "{}"}}
                        ],
                    }
                }
            },
            "'odd.in', which has an invariant",
        ),
        ({"column": {"name": "Value"}}, "Duplicate field name"),
        ({"column": {"type": "double"}, "partitions": ("odd",)}, "is partitioned by 'odd', whose type double"),
        ({"partitions": ("value",)}, "has only partition columns"),
        ({"protocol": {"minReaderVersion": 1, "minWriterVersion": 6}}, "has writer version 6"),
        *(
            ({"protocol": with_features(feature)}, f"has features that the sink does not support: '{feature}'")
            for feature in ("rowTracking", "identityColumns", "domainMetadata", "inCommitTimestamp", "icebergCompatV2", "other")
        ),
        *(
            ({"protocol": with_features(reader=(feature,))}, f"has features that the sink does not support: '{feature}'")
            for feature in ("v2Checkpoint", "typeWidening", "vacuumProtocolCheck", "variantType")
        ),
    ],
    ids=str,
)  # fmt: skip
def test_a_table_that_the_sink_does_not_understand_is_refused(how: dict[str, Any], why: str, tmp_path: Path) -> None:
    sink = made(tmp_path, **how)
    with pytest.raises(ConfigurationError, match=why):
        Driver(sink)
    assert len(list((tmp_path / "_delta_log").iterdir())) == 1


@pytest.mark.parametrize(
    "how",
    [
        {"protocol": with_features("appendOnly", "invariants"), "delta.appendOnly": "true"},
        {"protocol": with_features("changeDataFeed"), "delta.enableChangeDataFeed": "true"},
        {"protocol": with_features("checkConstraints", "generatedColumns")},
        {"protocol": with_features(reader=("deletionVectors", "timestampNtz", "columnMapping"))},
        {"protocol": {"minReaderVersion": 1, "minWriterVersion": 5}},
        {"delta.deletedFileRetentionDuration": "interval 1 week 2 days"},
        {"my.own": "property"},
    ],
    ids=str,
)
def test_settings_that_do_not_concern_an_append_are_accepted(how: dict[str, Any], tmp_path: Path) -> None:
    Driver(made(tmp_path, **how))
    assert DeltaTable(str(tmp_path)).version() == 1


#: Properties that delta-rs parses. It ignores a value that it cannot parse.
_PARSED = (
    "delta.appendOnly",
    "delta.autoOptimize.autoCompact",
    "delta.autoOptimize.optimizeWrite",
    "delta.checkpoint.writeStatsAsJson",
    "delta.checkpoint.writeStatsAsStruct",
    "delta.checkpointInterval",
    "delta.checkpointPolicy",
    "delta.columnMapping.maxColumnId",
    "delta.dataSkippingStatsColumns",
    "delta.enableChangeDataFeed",
    "delta.enableDeletionVectors",
    "delta.enableExpiredLogCleanup",
    "delta.enableIcebergCompatV1",
    "delta.enableInCommitTimestamps",
    "delta.enableRowTracking",
    "delta.enableTypeWidening",
    "delta.inCommitTimestampEnablementVersion",
    "delta.isolationLevel",
    "delta.logRetentionDuration",
    "delta.minReaderVersion",
    "delta.minWriterVersion",
    "delta.parquet.compression.codec",
    "delta.parquet.format.version",
    "delta.randomPrefixLength",
    "delta.randomizeFilePrefixes",
    "delta.targetFileSize",
    "delta.tuneFileSizesForRewrites",
    "delta.universalFormat.enabledFormats",
)


@pytest.mark.parametrize("name", _PARSED)
@pytest.mark.parametrize("value", ["garbage", ""])
def test_a_malformed_value_that_no_append_reads_is_harmless(name: str, value: str, tmp_path: Path) -> None:
    """Each commit also writes a checkpoint, and cleans up the log, so these settings are read."""
    how: dict[str, Any] = {"delta.checkpointInterval": "1", name: value}
    sink = made(tmp_path, **how)
    driver = Driver(sink)
    scan_start = driver.begin()
    handle = prepare(driver, sink, 1, 2)
    driver.committer.confirm([handle], 0)
    assert evidence(driver, [handle], scan_start) == [Evidence.COMMITTED]
    assert DeltaTable(str(tmp_path)).to_pyarrow_table().column("value").to_pylist() == [1, 2]


def test_a_malformed_count_set_after_the_decision_does_not_stop_the_commit(tmp_path: Path) -> None:
    shop = Shop(tmp_path)
    driver = Driver(shop.sink)
    scan_start = driver.begin()
    handle = prepare(driver, shop.sink, 1)
    change: dict[str, Any] = {"delta.dataSkippingNumIndexedCols": "garbage"}
    log = (shop.path / "_delta_log" / f"{0:020}.json").read_text().splitlines()
    [found] = [json.loads(line)["metaData"] for line in log if "metaData" in line]
    shop.commit_by_hand({"metaData": {**found, "configuration": change}})
    assert evidence(driver, [handle], scan_start) == [Evidence.COMMITTED]
    with pytest.raises(ConfigurationError, match=r"has delta\.dataSkippingNumIndexedCols='garbage'"):
        prepare(driver, shop.sink, 2, batch=1)


@pytest.mark.parametrize("feature", ["geospatial", "catalogManaged"])
def test_a_feature_that_deltalake_cannot_read_is_reported(feature: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="Use a table without this feature"):
        Driver(made(tmp_path, protocol=with_features(reader=(feature,))))


def test_a_missing_table_is_reported(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="Create the table, or correct table_uri"):
        Driver(DeltaSink(name="orders", table_uri=str(tmp_path / "nothing")))


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("interval 7 days", 604_800_000),
        ("7 days", 604_800_000),
        ("INTERVAL 1 WEEK", 604_800_000),
        ("interval 1 day 12 hours", 129_600_000),
        ("interval 90 minutes", 5_400_000),
        ("interval", None),
        ("7", None),
        ("interval 1 month", None),
        ("soon today", None),
    ],
)
def test_a_spark_interval_is_read(text: str, found: float | None) -> None:
    assert retention_ms({"delta.deletedFileRetentionDuration": text}) == found


@pytest.mark.parametrize(
    ("arguments", "why"),
    [
        ({"name": "a.b"}, "name='a.b'"),
        ({"table_uri": ""}, "pass a path"),
        ({"table_uri": "/tables/a%20b"}, "may confuse one table with another"),
        ({"table_uri": "file:///tables/a%2520b"}, "may confuse one table with another"),
        ({"table_uri": "s3://shop/a\\b"}, "may confuse one table with another"),
        ({"table_uri": "memory://orders"}, "exists in only one process"),
        ({"timeout_ms": 0}, "set a positive number"),
        ({"storage_options": {"timeout": 3}}, "a dictionary of strings"),
        ({"storage_options": {"AWS_S3_ALLOW_UNSAFE_RENAME": "true"}}, "AWS_S3_ALLOW_UNSAFE_RENAME lets two commits"),
    ],
    ids=str,
)
def test_an_argument_that_cannot_work_is_refused(arguments: dict[str, Any], why: str) -> None:
    with pytest.raises(ConfigurationError, match=why):
        DeltaSink(**{"name": "orders", "table_uri": "/tables/orders", **arguments})


def test_an_environment_that_lets_commits_overwrite_each_other_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shop = Shop(tmp_path)
    monkeypatch.setenv("AWS_S3_ALLOW_UNSAFE_RENAME", "true")
    with pytest.raises(ConfigurationError, match="the environment variable AWS_S3_ALLOW_UNSAFE_RENAME"):
        Driver(shop.sink)
    monkeypatch.setenv("AWS_S3_ALLOW_UNSAFE_RENAME", "false")
    Driver(shop.sink)


def test_credentials_are_not_shown() -> None:
    sink = DeltaSink(name="orders", table_uri="s3://b/t", storage_options={"AWS_SECRET_ACCESS_KEY": "hidden"})
    assert "hidden" not in repr(sink)
