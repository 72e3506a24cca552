"""The tests of commits once more, with Iceberg's own REST catalog in the place of pyiceberg's SQL catalog."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.unit.iceberg_support import Shop
from tests.unit.test_iceberg_commit import *  # noqa: F403 - its tests
from twopc.testing.contract.drivers import close_opened

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.warehouse import RestWarehouse


pytestmark = pytest.mark.whole


@pytest.fixture  # type: ignore[no-redef]
def shop(rest_warehouse: RestWarehouse) -> Iterator[Shop]:
    yield Shop(rest_warehouse)
    close_opened()
