"""Fixtures for the tests with a real REST catalog."""

from __future__ import annotations

import contextlib
import uuid
from typing import TYPE_CHECKING

import pytest

from tests.live.hadoop.s3 import BUCKET, LocalS3
from tests.warehouse import RestWarehouse, Warehouse
from twopc.integration.services.iceberg import RestCatalogs

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


@pytest.fixture(scope="session")
def rest_catalogs() -> Iterator[RestCatalogs]:
    """A JVM for all tests in the run."""
    with contextlib.closing(RestCatalogs()) as catalogs:
        yield catalogs


@pytest.fixture(scope="session")
def s3_server() -> Iterator[LocalS3]:
    """An S3 server for all tests in the run."""
    with LocalS3() as server:
        yield server


@pytest.fixture
def s3_warehouse(s3_server: LocalS3, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Warehouse:
    """A new SQL catalog, and tables on S3."""
    for variable in ("REQUEST_CHECKSUM_CALCULATION", "RESPONSE_CHECKSUM_VALIDATION"):
        monkeypatch.setenv(f"AWS_{variable}", "when_required")  # S3Proxy 2.6 does not support trailers
    storage = {
        "warehouse": f"s3://{BUCKET}/{uuid.uuid4().hex}",
        "s3.endpoint": f"http://127.0.0.1:{s3_server.port}",
        "s3.access-key-id": "x",
        "s3.secret-access-key": "y",
        "s3.region": "us-east-1",
    }
    return Warehouse(tmp_path / "warehouse", timeout_s=0.2, **storage)


@pytest.fixture
def rest_warehouse(rest_catalogs: RestCatalogs, tmp_path: Path) -> Iterator[RestWarehouse]:
    """A new, empty REST catalog."""
    directory = tmp_path / "warehouse"
    with rest_catalogs.served(directory) as uri:
        yield RestWarehouse(directory, uri, rest_catalogs.silent)
