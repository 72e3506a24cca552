"""Rows are staged until they are proven: where, and for how long."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pyarrow as pa
import pytest

from integration.spark.staging import SliceWriter, Staging, open_location
from integration.spark.views import View
from twopc.errors import ConfigurationError

if TYPE_CHECKING:
    from pathlib import Path

ROWS = pa.record_batch({"0": [1]})
VIEWS = {"s": View(columns=(("value", 0),))}


def staged(location: str, driver_epoch: int, batch_id: int) -> str:
    writer = SliceWriter(location, driver_epoch, batch_id, VIEWS)
    writer.write(ROWS)
    name = writer.close()
    assert name is not None
    return name


def test_proven_slices_are_deleted_and_those_of_a_newer_driver_are_left_alone(tmp_path: Path) -> None:
    written = {(i, b): staged(str(tmp_path), i, b) for i in (3, 4, 5) for b in (6, 7, 8)}
    staging = Staging(str(tmp_path))
    assert all(staging.has(name) for name in written.values())
    staging.release(4, 7)
    left = {place for place, name in written.items() if staging.has(name)}
    assert left == {(4, 8), (5, 6), (5, 7), (5, 8)}


def test_a_location_without_slices_has_nothing_to_delete(tmp_path: Path) -> None:
    staging = Staging(str(tmp_path / "absent"))
    staging.release(0, 0)
    assert not staging.has("0/0/x.arrow")


@pytest.mark.parametrize("form", ["{}", "{}/", "file:{}", "file://{}", "file://{}/"])
def test_a_location_is_one_place_however_it_is_written(form: str, tmp_path: Path) -> None:
    name = staged(form.format(tmp_path), 0, 0)
    assert (tmp_path / name).is_file()
    (rows,) = Staging(form.format(tmp_path)).read(name, "s")
    assert rows.to_pylist() == [{"value": 1}]


def test_a_location_that_pyarrow_cannot_open_is_named() -> None:
    with pytest.raises(ConfigurationError, match="staging_location='gopher://x/y'"):
        open_location("gopher://x/y")
