"""The sink keeps the contract."""

from __future__ import annotations

import contextlib
import fcntl
import json
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from files_sink import FilesSink

from twopc.testing.contract import Case, SinkContract, numbers

if TYPE_CHECKING:
    from collections.abc import Iterator


def numbers_in(sink: FilesSink) -> list[int]:
    """What a reader sees."""
    files = Path(sink.directory).glob("committed/*")
    return sorted(json.loads(line)["value"] for file in files for line in file.read_text().splitlines())


class TestFilesSink(SinkContract):
    """The suite, over this sink."""

    @pytest.fixture
    def case(self, tmp_path: Path) -> Case:
        """A new sink in a new directory."""
        sink = FilesSink("sample", str(tmp_path / "output"), timeout_ms=200)

        @contextlib.contextmanager
        def silence() -> Iterator[None]:
            with (sink.root / "lock").open("a") as lock:
                fcntl.flock(lock, fcntl.LOCK_EX)
                yield

        return Case(sink, numbers, lambda: numbers_in(sink), silence=silence)
