"""A query without Spark for each test."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.live.rules.schedules import Play, playing

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tests.live.services import KafkaService


@pytest.fixture
def play(kafka: KafkaService, tmp_path: Path) -> Iterator[Play]:
    with playing(kafka, tmp_path / "checkpoint") as one:
        yield one
