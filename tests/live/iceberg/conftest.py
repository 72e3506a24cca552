"""Fixtures for the tests with a real REST catalog."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING

import pytest

from tests.warehouse import RestWarehouse
from twopc.integration.services.iceberg import RestCatalogs

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


@pytest.fixture(scope="session")
def rest_catalogs() -> Iterator[RestCatalogs]:
    """A JVM for all tests of the run."""
    with contextlib.closing(RestCatalogs()) as catalogs:
        yield catalogs


@pytest.fixture
def rest_warehouse(rest_catalogs: RestCatalogs, tmp_path: Path) -> Iterator[RestWarehouse]:
    """A new, empty REST catalog."""
    directory = tmp_path / "warehouse"
    with rest_catalogs.served(directory) as uri:
        yield RestWarehouse(directory, uri, rest_catalogs.silent)
