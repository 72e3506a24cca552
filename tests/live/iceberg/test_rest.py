"""Run the commit tests again, with Iceberg's own REST catalog in place of pyiceberg's SQL catalog."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from tests.unit.iceberg_support import Shop
from tests.unit.test_iceberg_commit import *  # noqa: F403 - runs that module's tests
from tests.unit.test_lake_commit import *  # noqa: F403 - runs that module's tests
from twopc.testing.contract.drivers import close_opened

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.warehouse import RestWarehouse


pytestmark = pytest.mark.whole


class RestShop(Shop):
    def edit(self, change: Any) -> None:
        del change
        pytest.skip("this catalog keeps its tables' metadata in memory, where a test cannot edit it")


@pytest.fixture  # type: ignore[no-redef]
def shop(rest_warehouse: RestWarehouse) -> Iterator[Shop]:
    yield RestShop(rest_warehouse)
    close_opened()
