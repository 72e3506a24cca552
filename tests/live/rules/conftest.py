"""The query of most schedules."""

from __future__ import annotations

import uuid
from typing import TYPE_CHECKING

import pytest

from tests.live.rules.schedules import Play, playing

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tests.live.services import KafkaService


@pytest.fixture
def play(kafka: KafkaService, tmp_path: Path) -> Iterator[Play]:
    """A separate query on the shared broker. A rule that needs other settings has its own ``play``."""
    with playing(kafka, tmp_path / "checkpoint") as play:
        yield play


@pytest.fixture
def pair(kafka: KafkaService, tmp_path: Path) -> Iterator[tuple[Play, Play]]:
    """Two sinks of one checkpoint, ordered by name."""
    tail = uuid.uuid4().hex[:10]
    with (
        playing(kafka, tmp_path / "checkpoint", name=f"a{tail}") as first,
        playing(kafka, tmp_path / "checkpoint", name=f"b{tail}") as second,
    ):
        second.query_id = first.query_id
        yield first, second
