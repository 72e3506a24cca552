"""A query without Spark for each test."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.live.rules.schedules import Play, playing

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tests.live.services import KafkaService


@pytest.fixture(autouse=True)
def _in_its_own_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without a checkpoint, a command writes its reason to the current directory."""
    monkeypatch.chdir(tmp_path)


@pytest.fixture
def play(kafka: KafkaService, tmp_path: Path) -> Iterator[Play]:
    with playing(kafka, tmp_path / "checkpoint") as one:
        yield one
