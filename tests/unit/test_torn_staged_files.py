"""Staged rows that are torn or altered: never published, and the error says what to do."""

from __future__ import annotations

import gc
import logging
from typing import TYPE_CHECKING

import pyarrow as pa
import pytest

from twopc.errors import FatalError
from twopc.integration.spark.staging import StagedFileWriter, Staging
from twopc.integration.spark.views import View

if TYPE_CHECKING:
    from pathlib import Path

VIEWS = {"s": View(columns=(("value", 0),))}
ROWS = pa.record_batch({"0": ["one", "two", None]})


@pytest.fixture
def name(tmp_path: Path) -> str:
    writer = StagedFileWriter(str(tmp_path), 3, 6, VIEWS)
    for _ in range(2):
        writer.write(ROWS)
    found = writer.close()
    assert found is not None
    return found


def _values(location: Path, name: str) -> list[object]:
    return [row["value"] for rows in Staging(str(location)).read(name, "s") for row in rows.to_pylist()]


def test_a_complete_staged_file_yields_its_rows(tmp_path: Path, name: str) -> None:
    assert Staging(str(tmp_path)).has(name)
    assert _values(tmp_path, name) == ["one", "two", None] * 2


def test_a_staged_file_truncated_anywhere_does_not_count_as_staged(
    tmp_path: Path, name: str, caplog: pytest.LogCaptureFixture
) -> None:
    whole = (tmp_path / name).read_bytes()
    staging = Staging(str(tmp_path))
    caplog.set_level(logging.WARNING)
    for length in range(len(whole)):
        caplog.clear()
        (tmp_path / name).write_bytes(whole[:length])
        if staging.has(name):  # all rows are there; only the information about them is missing
            assert _values(tmp_path, name) == ["one", "two", None] * 2
        else:
            assert f"{tmp_path}/{name} are ignored, because the file is torn" in caplog.text
            with pytest.raises(FatalError, match="is torn or was altered"):
                _values(tmp_path, name)


def test_a_staged_file_with_any_flipped_bit_is_not_published(tmp_path: Path, name: str) -> None:
    whole = (tmp_path / name).read_bytes()
    for position in range(len(whole)):
        altered = bytearray(whole)
        altered[position] ^= 1 << position % 8
        (tmp_path / name).write_bytes(altered)
        with pytest.raises(
            FatalError, match=rf"{name} cannot be read.*No staged row was written.*Remove the file and restart"
        ):
            _values(tmp_path, name)


def test_the_files_of_a_failed_task_do_not_count(tmp_path: Path) -> None:
    writer = StagedFileWriter(str(tmp_path), 3, 6, VIEWS)
    writer.write(ROWS)
    name = writer.name
    del writer
    gc.collect()
    assert (tmp_path / name).exists()
    assert not Staging(str(tmp_path)).has(name)
