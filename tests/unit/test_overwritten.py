"""The offsets in a checkpoint are compared with those in Spark's memory. Their order and their text may differ."""

from __future__ import annotations

import json
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any
from unittest.mock import MagicMock

import pytest

from twopc.errors import FatalError
from twopc.files import LocalFiles, MemoryFiles
from twopc.integration.spark import classic
from twopc.integration.spark.kept_data import Unused
from twopc.integration.spark.overwritten import require_not_overwritten
from twopc.times import Times

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

_OF_TWO_SOURCES = b'v2\n{}\norders:{"t":{"0":5,"1":3}}\nusers:{"u":{"0":1}}'


def compare(written: bytes, *planned: str) -> None:
    """Compare with a query in which equal offsets belong to one source that is read several times."""
    files = MemoryFiles()
    files.put_if_absent("offsets/7", written)
    sources = collection([MagicMock(**{"json.return_value": text}) for text in dict.fromkeys(planned) if text != "-"])
    query = MagicMock(planned_offsets=in_spark(planned), offsets_of_sources=sources)
    require_not_overwritten(query, files, 7)


def in_spark(planned: Sequence[str]) -> MagicMock:
    """Spark's ``OffsetSeq``."""
    sequence = MagicMock()
    sequence.__str__.return_value = f"[{', '.join(planned)}]"  # type: ignore[attr-defined]
    sequence.offsets.return_value = collection(
        [
            MagicMock(**{"isDefined.return_value": text != "-", "get.return_value.json.return_value": text})
            for text in planned
        ]
    )
    return sequence


def collection(elements: Sequence[MagicMock]) -> MagicMock:
    """A Scala collection."""
    ends = [True] * len(elements) + [False]
    iterator = MagicMock(**{"hasNext.side_effect": ends, "next.side_effect": elements})
    return MagicMock(**{"iterator.return_value": iterator})


@pytest.mark.parametrize(
    ("written", "planned"),
    [
        (b'v1\n{}\n{"t":{"0":5}}\n-', ['{"t":{"0":5}}', "-"]),
        (_OF_TWO_SOURCES, ['{"u":{"0":1}}', '{"t":{"0":5,"1":3}}']),
        (_OF_TWO_SOURCES, ['{"t":{"1":3, "0":5}}', '{"u":{"0":1}}']),
        (b"v1\n{}\n1\n1\n2", ["1", "1", "2"]),
        (b'v2\n{}\norders:{"t":{"0":5}}', ['{"t":{"0":5}}', '{"t":{"0":5}}']),
        (b'v2\n{}\norders:{"t":{"0":5}}', ['{"t":{"0":5}}', "-"]),
    ],
    ids=[
        "the same text",
        "another order of the sources",
        "another order of the keys",
        "a source that is read twice",
        "a source that is read twice, in version 2",
        "a source without an offset, in version 2",
    ],
)
def test_equal_offsets_are_accepted(written: bytes, planned: Sequence[str]) -> None:
    compare(written, *planned)


@pytest.mark.parametrize(
    ("written", "planned"),
    [
        (_OF_TWO_SOURCES, ['{"t":{"0":5,"1":4}}', '{"u":{"0":1}}']),
        (b'v1\n{}\n{"t":{"0":5}}\n-', ['{"t":{"0":5}}', '{"u":{"0":1}}']),
        (b"v1\n{}\n1\n1\n2", ["1", "2", "2"]),
        (b'v2\n{}\norders:{"t":{"0":5}}', ['{"t":{"0":5}}', '{"u":{"0":1}}']),
    ],
    ids=["a larger offset", "a source without an offset", "several equal offsets", "a missing source, in version 2"],
)
def test_different_offsets_stop_the_query_and_the_error_shows_both(written: bytes, planned: Sequence[str]) -> None:
    with pytest.raises(FatalError, match="has overwritten the offsets") as raised:
        compare(written, *planned)
    assert f"planned the batch with [{', '.join(planned)}]" in str(raised.value)


def look(given: Path, own: Path, planned: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Look at batch 7 on a file system whose rename is exclusive, such as HDFS."""
    monkeypatch.setattr(classic, "open_files", lambda _, location: LocalFiles(location))
    monkeypatch.setattr(classic, "renames_exclusively", lambda _: True)
    sources = collection([MagicMock(**{"json.return_value": planned})])
    query: Any = MagicMock(
        checkpoint_location=str(own), planned_offsets=in_spark([planned]), offsets_of_sources=sources
    )
    stateful: Any = None
    mode = classic.ClassicMode(MagicMock(), query, Unused(), keeps_shuffles=True, stateful=stateful)
    mode._state_sizes = MagicMock()
    frames: Any = [SimpleNamespace(name="", frame=MagicMock())]
    batch: Any = SimpleNamespace(query_id="q", batch_id=7)
    mode.look(LocalFiles(given), frames, batch)


def checkpoint(root: Path, name: str, offset: int) -> Path:
    (root / name / "offsets").mkdir(parents=True)
    (root / name / "offsets/7").write_text(f'v1\n{{}}\n{{"t":{{"0":{offset}}}}}')
    return root / name


def test_a_copy_of_the_querys_checkpoint_is_refused_even_if_no_driver_can_overwrite_offsets(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    given, own = checkpoint(tmp_path, "a", 120), checkpoint(tmp_path, "b", 150)
    with pytest.raises(FatalError, match=r"one is a copy of the other.*omit checkpoint_location") as raised:
        look(given, own, '{"t":{"0":150}}', monkeypatch)
    assert f"{given}/offsets/7" in str(raised.value) and f"The query's checkpoint is {own}," in str(raised.value)


def test_two_names_of_the_querys_checkpoint_are_accepted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    own = checkpoint(tmp_path, "a", 120)
    (tmp_path / "link").symlink_to(own)
    look(tmp_path / "link", own, '{"t":{"0":120}}', monkeypatch)


def test_no_offsets_are_compared_if_no_driver_can_overwrite_the_querys_own_checkpoint(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The comparison would read the file once more for each batch."""
    own = checkpoint(tmp_path, "a", 120)
    look(own, own, "not asked", monkeypatch)


def compare_times(root: Path, timestamp_ms: int | None, *, keeps_state: bool = True) -> None:
    """Compare a batch that the query has planned at the time 8 with a file that names another time."""
    (root / "offsets").mkdir()
    if keeps_state:
        (root / "state/0").mkdir(parents=True)
    times = {} if timestamp_ms is None else {"batchWatermarkMs": 3, "batchTimestampMs": timestamp_ms}
    (root / "offsets/7").write_text(f"v1\n{json.dumps(times)}\n1")
    query = MagicMock(planned_offsets=in_spark(["1"]), offsets_of_sources=collection([]), planned_times=Times(3, 8))
    require_not_overwritten(query, LocalFiles(root), 7)


def test_equal_offsets_of_another_drivers_plan_stop_a_query_with_state(tmp_path: Path) -> None:
    """Fails if the decision contains times that are not those of its rows: the restart would write another state."""
    with pytest.raises(FatalError, match="has overwritten the offsets") as raised:
        compare_times(tmp_path, 9)
    assert "the time 9 ms" in str(raised.value) and "the time 8 ms" in str(raised.value)


@pytest.mark.parametrize(
    ("timestamp_ms", "keeps_state"), [(8, True), (9, False), (None, True)], ids=["equal", "no state", "not known"]
)
def test_times_stop_no_other_query(timestamp_ms: int | None, tmp_path: Path, *, keeps_state: bool) -> None:
    compare_times(tmp_path, timestamp_ms, keeps_state=keeps_state)
