"""Fixtures for the tests that use a real HBase."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.live.hbase.services import HBaseService, chosen, hbase_service
from tests.live.hbase.support import Store
from tests.live.lending import lent

if TYPE_CHECKING:
    from collections.abc import Iterator

    from twopc.integration.services.hbase import LocalHBase


@pytest.fixture(scope="session")
def hbase_server() -> Iterator[HBaseService]:
    """A real HBase shared by all tests in the run. Use your own sink names and rows."""
    with hbase_service(chosen()) as service:
        yield service


@pytest.fixture
def local_hbase_server(hbase_server: HBaseService) -> Iterator[LocalHBase]:
    """The shared server, for a test that kills or pauses it; it is running again when the test ends."""
    yield from lent(hbase_server.local, f"TWOPC_HBASE={chosen()}")


@pytest.fixture(scope="session")
def _shared_store(hbase_server: HBaseService) -> Iterator[Store]:
    """Direct access to HBase. The table is shared, because creating one takes half a second."""
    store = Store(hbase_server.zookeeper)
    store.create_table()
    yield store
    store.close()


@pytest.fixture
def store(_shared_store: Store) -> Store:
    """Direct access to HBase, with a separate row key prefix for the test."""
    return _shared_store.renamed()
