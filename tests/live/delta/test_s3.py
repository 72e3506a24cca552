"""A table on S3: files, records and commits go through deltalake's own client, and a silent storage costs bounded time.

S3Proxy does not support conditional puts, so no two writers write at the same time here.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable

from tests.live.hadoop.s3 import BUCKET, LocalS3
from tests.unit.lake_support import long_ago
from twopc.attempt import Evidence
from twopc.sinks.delta import DeltaSink
from twopc.testing.contract import numbers
from twopc.testing.contract.drivers import Driver, close_opened

if TYPE_CHECKING:
    from collections.abc import Iterator

COLUMNS: list[Any] = [pa.field("value", pa.int64(), nullable=False), pa.field("note", pa.string())]


@pytest.fixture
def server() -> Iterator[LocalS3]:
    with LocalS3() as started:
        yield started
        close_opened()


@pytest.mark.whole
def test_a_batch_is_written_to_s3_and_its_outcome_is_unknown_while_the_storage_is_silent(server: LocalS3) -> None:
    options = {
        "AWS_ENDPOINT_URL": f"http://127.0.0.1:{server.port}",
        "AWS_ACCESS_KEY_ID": "x",
        "AWS_SECRET_ACCESS_KEY": "y",
        "AWS_REGION": "us-east-1",
        "AWS_ALLOW_HTTP": "true",
    }
    uri = f"s3://{BUCKET}/orders"
    DeltaTable.create(uri, pa.schema(COLUMNS), storage_options=options)
    sink = DeltaSink(name="orders", table_uri=uri, storage_options=options, timeout_ms=4_000)

    def values() -> list[Any]:
        found: list[Any] = DeltaTable(uri, storage_options=options).to_pyarrow_table().column("value").to_pylist()
        return sorted(found)

    driver = Driver(sink)
    scan_start = driver.begin()
    handles = [driver.prepare(numbers(range(100_000))), driver.prepare(numbers([100_000]), partition=1)]
    assert values() == []
    assert driver.commit(handles, scan_start) == [Evidence.COMMITTED] * 2
    assert values() == list(range(100_001))
    scan_start = driver.begin()
    with long_ago():
        handle = driver.prepare(numbers([-2]))
    assert driver.committer.commit([handle], scan_start) == {handle: Evidence.COMMITTED}
    copies = [path for path in DeltaTable(uri, storage_options=options).file_uris() if "-copy-" in path]
    assert len(copies) == 1, "an old file should have been copied"
    scan_start = driver.begin()
    handle = driver.prepare(numbers([-1]))
    server.pause()
    began = time.monotonic()
    try:
        assert driver.committer.commit([handle], scan_start) == {handle: Evidence.UNKNOWN}
    finally:
        server.resume()
    assert time.monotonic() - began < 60, "deltalake alone would wait for 180 s, several times"
    assert driver.committer.commit([handle], scan_start) == {handle: Evidence.COMMITTED}
    assert values() == [-2, -1, *range(100_001)]
