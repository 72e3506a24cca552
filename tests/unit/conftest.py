"""Fixtures for the unit tests."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.unit.fake_sink import Cluster
from twopc import crash_points

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


@pytest.fixture
def cluster(tmp_path: Path) -> Cluster:
    """An empty world with an empty checkpoint."""
    return Cluster(tmp_path / "checkpoint" / "twopc")


@pytest.fixture(autouse=True)
def _disarm_crash_points() -> Iterator[None]:
    crash_points.disarm()
    yield
    crash_points.disarm()
