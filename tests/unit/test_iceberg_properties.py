"""A table property with a value that a write cannot use is named when the sink is opened, before anything is written.

Without these checks (tried with pyiceberg 0.12), the task fails with an error that does not name the
table or the property, or it never returns (``page-row-limit``), or the batch is decided and cannot be committed (``avro``).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from pyiceberg.partitioning import UNPARTITIONED_PARTITION_SPEC

from tests.unit.iceberg_support import Shop
from tests.unit.lake_support import evidence, prepare
from twopc import ConfigurationError
from twopc.attempt import Evidence
from twopc.testing.contract import numbers
from twopc.testing.contract.drivers import Driver, close_opened

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

_INTEGER = "it must be an integer from"
#: Properties, values, and what the error says about them.
REFUSED = (
    *((name, value, _INTEGER) for value in ("garbage", "1.5", "", "-1", str(2**63)) for name in (
        "write.target-file-size-bytes",
        "write.parquet.row-group-limit",
        "write.parquet.page-row-limit",
        "write.parquet.page-size-bytes",
        "write.parquet.dict-size-bytes",
        "write.metadata.previous-versions-max",
        "buffer-size",
    )),
    ("write.parquet.row-group-limit", "0", _INTEGER),
    ("write.parquet.page-row-limit", "0", _INTEGER),
    ("write.object-storage.enabled", "garbage", "it must be 'true' or 'false'"),
    ("write.metadata.delete-after-commit.enabled", "2", "it must be 'true' or 'false'"),
    ("s3.force-virtual-addressing", "garbage", "it must be 'true' or 'false'"),
    ("s3.connect-timeout", "garbage", "it must be a positive number of seconds"),
    ("s3.request-timeout", "-1", "it must be a positive number of seconds"),
    ("write.parquet.compression-codec", "garbage", r"pyarrow cannot compress Parquet files with it \(Unsupported"),
    ("write.parquet.compression-codec", "lzo", r"pyarrow cannot compress Parquet files with it \(While LZO"),
    ("write.parquet.compression-level", "garbage", "it must be an integer"),
    ("write.parquet.compression-level", str(2**31), "the compression 'zstd' does not support this level"),
    ("write.avro.compression-codec", "garbage", "pyiceberg cannot compress manifests with it"),
    ("write.avro.compression-codec", "lz4", "pyiceberg cannot compress manifests with it"),
    ("write.metadata.metrics.default", "garbage", r"it must be none, counts, full or truncate\(length\)"),
    ("write.metadata.metrics.default", "truncate(0)", r"it must be none, counts, full or truncate\(length\)"),
    ("write.metadata.metrics.column.note", "truncate", r"it must be none, counts, full or truncate\(length\)"),
    ("write.data.path", "garbage", "each process could use a different directory"),
    ("write.metadata.path", "garbage", "each process could use a different directory"),
    ("write.data.path", "x9://garbage/data", "pyiceberg does not support the scheme 'x9'"),
    ("write.metadata.path", "x9://garbage/metadata", "pyiceberg does not support the scheme 'x9'"),
)  # fmt: skip
#: Properties that no write reads, and values that Iceberg allows.
ACCEPTED = (
    *((name, "garbage") for name in (
        "commit.retry.num-retries",
        "commit.retry.min-wait-ms",
        "commit.retry.max-wait-ms",
        "commit.retry.total-timeout-ms",
        "commit.manifest.target-size-bytes",
        "commit.manifest.min-count-to-merge",
        "commit.manifest-merge.enabled",
        "write.summary.partition-limit",
        "write.parquet.row-group-size-bytes",
        "write.parquet.bloom-filter-max-bytes",
        "write.parquet.bloom-filter-enabled.column.value",
        "write.object-storage.partitioned-paths",
        "write.metadata.compression-codec",
        "write.metadata.metrics.column.absent",
        "write.delete.mode",
        "history.expire.min-snapshots-to-keep",
    )),
    ("write.parquet.compression-codec", "UNCOMPRESSED"),
    ("write.parquet.compression-codec", "Gzip"),
    ("write.avro.compression-codec", "GZIP"),
    ("write.avro.compression-codec", "uncompressed"),
    ("write.avro.compression-codec", "Zstd"),
    ("write.parquet.compression-level", "9"),
    ("write.parquet.dict-size-bytes", "0"),
    ("write.parquet.page-row-limit", "1"),
    ("write.metadata.previous-versions-max", "0"),
    ("write.metadata.metrics.column.note", ""),
    ("write.data.path", ""),
    ("write.metadata.path", ""),
)  # fmt: skip


@pytest.fixture(autouse=True)
def _close() -> Iterator[None]:
    yield
    close_opened()


@pytest.mark.parametrize(("name", "value", "why"), REFUSED)
def test_a_value_that_a_write_cannot_use_is_reported(name: str, value: str, why: str, tmp_path: Path) -> None:
    shop = Shop(tmp_path)
    shop.edit(lambda table: table["properties"].update({name: value}))
    for refused in (lambda: Driver(shop.sink), lambda: shop.sink.check_schema(numbers([1]).schema)):
        with pytest.raises(ConfigurationError, match=f"sink 'orders': table shop.orders has {name}=.*{why}") as raised:
            refused()
        assert f"{name}={value!r}" in str(raised.value)
        assert str(raised.value).endswith("Nothing was written")
    assert shop.commits() == 0


@pytest.mark.parametrize(("name", "value"), ACCEPTED)
def test_an_unused_or_allowed_value_is_accepted(name: str, value: str, tmp_path: Path) -> None:
    shop = Shop(tmp_path)
    shop.edit(lambda table: table["properties"].update({name: value}))
    driver = Driver(shop.sink)
    scan_start = driver.begin()
    assert driver.commit([prepare(driver, shop.sink, 1, 2)], scan_start) == [Evidence.COMMITTED]
    assert shop.values() == [1, 2]
    assert [path for path in shop.files() if path.suffix == ".parquet"]


def test_a_missing_storage_class_is_reported(tmp_path: Path) -> None:
    shop = Shop(tmp_path)
    shop.edit(lambda table: table["properties"].update({"py-io-impl": "absent.Class"}))
    with pytest.raises(
        ConfigurationError, match=r"table shop.orders: .*absent.Class.*Correct the table's or catalog's py-io-impl"
    ):
        Driver(shop.sink)


@pytest.mark.parametrize(
    ("name", "is_blocked"), [("write.avro.compression-codec", True), ("write.parquet.row-group-limit", False)]
)
def test_a_value_broken_after_the_decision_stops_a_commit_only_if_the_commit_reads_it(
    name: str, *, is_blocked: bool, tmp_path: Path
) -> None:
    shop = Shop(tmp_path)
    driver = Driver(shop.sink)
    scan_start = driver.begin()
    handle = prepare(driver, shop.sink, 1, 2)
    driver.committer.confirm([handle], 0)
    shop.edit(lambda table: table["properties"].update({name: "garbage"}))
    found = evidence(driver, [handle], scan_start)
    assert found == [Evidence.UNKNOWN if is_blocked else Evidence.COMMITTED]
    if is_blocked:
        [blocker] = driver.committer.blockers()
        assert f"shop.orders has {name}='garbage', but pyiceberg cannot" in blocker
        assert f"SET TBLPROPERTIES ('{name}'='gzip')" in blocker
        shop.edit(lambda table: table["properties"].update({name: "gzip"}))
        assert evidence(driver, [handle], scan_start) == [Evidence.COMMITTED]
    assert shop.values() == [1, 2]


@pytest.mark.parametrize("is_enabled", [True, False])
def test_old_metadata_files_are_deleted_if_the_table_says_so(*, is_enabled: bool, tmp_path: Path) -> None:
    shop = Shop(
        tmp_path,
        UNPARTITIONED_PARTITION_SPEC,
        **{
            "write.metadata.previous-versions-max": "2",
            "write.metadata.delete-after-commit.enabled": str(is_enabled).lower(),
        },
    )
    driver = Driver(shop.sink)
    for batch in range(6):
        scan_start = driver.begin()
        driver.commit([prepare(driver, shop.sink, batch, batch=batch)], scan_start)
    kept = {path.name for path in (shop.warehouse.directory / "shop" / "orders" / "metadata").glob("*.metadata.json")}
    metadata = shop.table().metadata
    logged = {entry.metadata_file.rpartition("/")[2] for entry in metadata.metadata_log}
    newest = shop.table().metadata_location.rpartition("/")[2]
    assert len(kept) == (3 if is_enabled else 8)
    assert kept >= {*logged, newest}
    assert shop.values() == list(range(6))
