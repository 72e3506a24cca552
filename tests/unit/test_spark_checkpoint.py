"""A file source's offset is a counter; the files it stands for are the same wherever Spark has stored them (rule 10)."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

from integration.spark.checkpoint import source_offsets
from twopc.files import LocalFiles

if TYPE_CHECKING:
    from pathlib import Path

FILES = {0: ["/in/a"], 1: ["/in/b", "/in/c"], 2: ["/in/d"]}


def offsets_of(root: Path, source_log: dict[str, list[int]], files: dict[int, list[str]] | None = None) -> str:
    """The canonical offset of counter 1; ``source_log``: for each file's name the counters in it."""
    found = files or FILES
    for name, counters in source_log.items():
        lines = [json.dumps({"path": path, "timestamp": 1, "batchId": n}) for n in counters for path in found[n]]
        (root / "sources/0").mkdir(parents=True, exist_ok=True)
        (root / "sources/0" / name).write_text("\n".join(["v1", *lines]))
    (root / "offsets").mkdir(exist_ok=True)
    (root / "offsets/5").write_text('v1\n{"batchWatermarkMs":0}\n{"logOffset":1}')
    (offset,) = source_offsets(LocalFiles(root), 5) or ()
    return offset


@pytest.mark.parametrize(
    "source_log",
    [{"1.compact": [0, 1]}, {"2.compact": [0, 1, 2]}, {"0.compact": [0], "1": [1]}, {"0": [0], "1": [1], "2": [2]}],
    ids=["into its own file", "into a later file", "before it", "not at all"],
)
def test_a_counter_stands_for_the_same_files_wherever_they_were_compacted(
    source_log: dict[str, list[int]], tmp_path: Path
) -> None:
    (tmp_path / "plain").mkdir()
    (tmp_path / "compacted").mkdir()
    plain = offsets_of(tmp_path / "plain", {"1": [1]})
    assert offsets_of(tmp_path / "compacted", source_log) == plain


@pytest.mark.parametrize("source_log", [{"1": [1]}, {"1.compact": [0, 1]}, {"2.compact": [0, 1, 2]}])
def test_a_counter_that_stands_for_other_files_is_another_offset(
    source_log: dict[str, list[int]], tmp_path: Path
) -> None:
    (tmp_path / "ours").mkdir()
    (tmp_path / "theirs").mkdir()
    ours = offsets_of(tmp_path / "ours", source_log)
    assert offsets_of(tmp_path / "theirs", source_log, FILES | {1: ["/in/b", "/in/x"]}) != ours


def test_the_order_in_which_a_counters_files_were_logged_does_not_matter(tmp_path: Path) -> None:
    (tmp_path / "ours").mkdir()
    (tmp_path / "theirs").mkdir()
    ours = offsets_of(tmp_path / "ours", {"1": [1]})
    assert offsets_of(tmp_path / "theirs", {"2.compact": [2, 1, 0]}, FILES | {1: ["/in/c", "/in/b"]}) == ours


def test_every_source_counts(tmp_path: Path) -> None:
    (tmp_path / "offsets").mkdir()
    (tmp_path / "offsets/5").write_text('v1\n{"batchWatermarkMs":0}\n{"t":{"0":7}}\n-\n{"u":{"1":8,"0":9}}')
    assert source_offsets(LocalFiles(tmp_path), 5) == ('{"t":{"0":7}}', "-", '{"u":{"0":9,"1":8}}')
    assert source_offsets(LocalFiles(tmp_path), 6) is None
