"""Source offsets are compared as text: equal offsets must yield equal text, and different ones different text (rule 10)."""

from __future__ import annotations

import json
import random
from typing import TYPE_CHECKING

import pytest

from tests.unit.objects import Objects
from twopc.errors import ConfigurationError
from twopc.files import LocalFiles
from twopc.integration.spark import checkpoint as checkpoint_module
from twopc.integration.spark.checkpoint import numbers, planning_time_ms, source_offsets

if TYPE_CHECKING:
    from pathlib import Path

FILES = {0: ["/in/a"], 1: ["/in/b", "/in/c"], 2: ["/in/d"]}


def offsets_of(root: Path, source_log: dict[str, list[int]], files: dict[int, list[str]] | None = None) -> str:
    """The canonical offset of counter 1; ``source_log`` maps a file's name to its counters."""
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
def test_a_counter_leads_to_the_same_offset_no_matter_where_its_files_were_compacted(
    source_log: dict[str, list[int]], tmp_path: Path
) -> None:
    (tmp_path / "plain").mkdir()
    (tmp_path / "compacted").mkdir()
    plain = offsets_of(tmp_path / "plain", {"1": [1]})
    assert offsets_of(tmp_path / "compacted", source_log) == plain


@pytest.mark.parametrize("source_log", [{"1": [1]}, {"1.compact": [0, 1]}, {"2.compact": [0, 1, 2]}])
def test_a_counter_with_different_files_is_a_different_offset(source_log: dict[str, list[int]], tmp_path: Path) -> None:
    (tmp_path / "ours").mkdir()
    (tmp_path / "theirs").mkdir()
    ours = offsets_of(tmp_path / "ours", source_log)
    assert offsets_of(tmp_path / "theirs", source_log, FILES | {1: ["/in/b", "/in/x"]}) != ours


def test_the_order_of_a_counters_files_does_not_matter(tmp_path: Path) -> None:
    (tmp_path / "ours").mkdir()
    (tmp_path / "theirs").mkdir()
    ours = offsets_of(tmp_path / "ours", {"1": [1]})
    assert offsets_of(tmp_path / "theirs", {"2.compact": [0, 1, 2]}, FILES | {1: ["/in/c", "/in/b"]}) == ours


class Counted(LocalFiles):
    """Counts the bytes that are read."""

    read_bytes = 0

    def read(self, name: str) -> bytes | None:
        return self._counted(super().read(name))

    def read_end(self, name: str, size: int) -> bytes | None:
        return self._counted(super().read_end(name, size))

    def _counted(self, data: bytes | None) -> bytes | None:
        self.read_bytes += len(data or b"")
        return data


@pytest.mark.parametrize("name", ["30000.compact", "30001.compact"])
def test_a_batch_reads_only_the_end_of_a_log_that_has_grown_for_years(tmp_path: Path, name: str) -> None:
    """The whole file has 3 MB. Spark writes such a file instead of every tenth entry."""
    files = Counted(checkpoint(tmp_path, 'v1\n{}\n{"logOffset":30000}', "0").location)
    entries = [json.dumps({"path": f"file:///in/{n:040}.json", "timestamp": 1, "batchId": n}) for n in range(30_002)]
    last = int(name.removesuffix(".compact"))
    (tmp_path / "sources/0" / name).write_text("\n".join(["v1", *entries[: last + 1]]))
    compacted = digests(files)
    assert files.read_bytes < 100_000
    (tmp_path / "sources/0/30000").write_text("\n".join(["v1", entries[30_000]]))
    assert digests(files) == compacted


@pytest.mark.parametrize("end_bytes", [1, 7, 64, 100, 1000])
def test_the_same_entries_have_the_same_digest_wherever_the_reading_of_a_log_begins(
    tmp_path: Path, end_bytes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(checkpoint_module, "_END_BYTES", end_bytes)
    chance = random.Random(end_bytes)
    for number in range(60):
        per_counter = [chance.randint(1, 6) for _ in range(8)]
        found = {
            n: [f"/in/{'é' * chance.randrange(5)}{n}-{i}" for i in range(count)] for n, count in enumerate(per_counter)
        }
        compacted, plain = tmp_path / f"{number}c", tmp_path / f"{number}p"
        compacted.mkdir()
        plain.mkdir()
        last = chance.randint(1, 7)
        log = {f"{last}.compact": list(range(last + 1))}
        assert offsets_of(compacted, log, found) == offsets_of(plain, {"1": [1]}, found)


def test_every_source_is_part_of_the_offsets(tmp_path: Path) -> None:
    (tmp_path / "offsets").mkdir()
    (tmp_path / "offsets/5").write_text('v1\n{"batchWatermarkMs":0}\n{"t":{"0":7}}\n-\n{"u":{"1":8,"0":9}}')
    assert source_offsets(LocalFiles(tmp_path), 5) == ('{"t":{"0":7}}', "-", '{"u":{"0":9,"1":8}}')
    assert source_offsets(LocalFiles(tmp_path), 6) is None


# -- offset logs of versions 1 and 2, as Spark 4.3.0 writes them -------------------------------------------------------


def checkpoint(root: Path, offsets: str, *logs: str) -> LocalFiles:
    """Batch 5 with ``offsets``; each log has one file at counter 1, named like the log."""
    (root / "offsets").mkdir(parents=True)
    (root / "offsets/5").write_text(offsets)
    for log in logs:
        (root / "sources" / log).mkdir(parents=True)
        entry = json.dumps({"path": f"/in/{log}", "timestamp": 1, "batchId": 1})
        (root / "sources" / log / "1").write_text(f"v1\n{entry}")
    return LocalFiles(root)


def digests(files: LocalFiles) -> list[str | None]:
    found = source_offsets(files, 5) or ()
    return [json.loads(text[text.index("{") :]).get("digest") for text in found]


def test_named_sources_are_compared_by_name_regardless_of_their_order(tmp_path: Path) -> None:
    one = checkpoint(tmp_path / "one", 'v2\n{}\na:{"logOffset":1}\nb:{"logOffset":1}', "a", "b")
    same = checkpoint(tmp_path / "same", 'v2\n{}\nb:{"logOffset":1}\na:{"logOffset":1}', "a", "b")
    other = checkpoint(tmp_path / "other", 'v2\n{}\na:{"logOffset":1}\nc:{"logOffset":1}', "a", "c")
    assert source_offsets(one, 5) == source_offsets(same, 5) != source_offsets(other, 5)
    assert [text.split(":")[0] for text in source_offsets(one, 5) or ()] == ["a", "b"]
    assert len(set(digests(one))) == 2 and None not in digests(one)


def test_the_files_of_a_named_source_are_compared(tmp_path: Path) -> None:
    ours = checkpoint(tmp_path / "ours", 'v2\n{}\na:{"logOffset":1}', "a")
    theirs = checkpoint(tmp_path / "theirs", 'v2\n{}\na:{"logOffset":1}', "a")
    (tmp_path / "theirs/sources/a/1").write_text('v1\n{"path":"/in/x","timestamp":1,"batchId":1}')
    assert source_offsets(ours, 5) != source_offsets(theirs, 5)


@pytest.mark.parametrize("character", ["\u2028", "\u2029", "\x85", "\x0b", "\x0c", "\x1c"])
@pytest.mark.parametrize("version", ["v1", "v2"])
def test_a_character_that_ends_a_line_only_in_python_is_part_of_an_offset(
    version: str, character: str, tmp_path: Path
) -> None:
    """Spark ends a line only at a line feed or a carriage return. The source's offset need not be JSON."""
    before = "" if version == "v1" else "0:"
    (tmp_path / "offsets").mkdir()
    (tmp_path / "offsets/5").write_text(
        f'{version}\n{{"batchWatermarkMs":0,"batchTimestampMs":9}}\n{before}a{character}b'
    )
    assert source_offsets(LocalFiles(tmp_path), 5) == (f"a{character}b",)
    assert checkpoint_module.planning_time_ms(LocalFiles(tmp_path), 5) == 9


def test_numbered_sources_give_the_same_offsets_in_both_versions(tmp_path: Path) -> None:
    first = checkpoint(tmp_path / "v1", 'v1\n{}\n{"logOffset":1}\n{"t":{"0":7}}', "0", "1")
    second = checkpoint(tmp_path / "v2", 'v2\n{}\n0:{"logOffset":1}\n1:{"t":{"0":7}}', "0", "1")
    assert source_offsets(first, 5) == source_offsets(second, 5)


@pytest.mark.parametrize(
    ("offsets", "compared"),
    [
        pytest.param('v1\n{}\n{"logOffset":1}\n{"logOffset":1}\n{"logOffset":0}', [True, False, False], id="version 1"),
        pytest.param('v2\n{}\n1:{"logOffset":1}\n2:{"logOffset":0}', [False, False], id="version 2"),
    ],
)
def test_a_source_after_a_source_read_twice_is_compared_only_by_its_counter(
    offsets: str, compared: list[bool], tmp_path: Path
) -> None:
    """In ``a.union(a).union(b)``, nothing says which log belongs to the later offsets. A growing log must change nothing."""
    files = checkpoint(tmp_path, offsets, "0", "1")
    before = source_offsets(files, 5)
    assert [digest is not None for digest in digests(files)] == compared
    (tmp_path / "sources/1/0").write_text('v1\n{"path":"/in/x","timestamp":1,"batchId":0}')
    assert source_offsets(files, 5) == before


@pytest.mark.parametrize(
    "offsets",
    [
        pytest.param('{"logOffset":1}\n{"at":0}', id="before the other source"),
        pytest.param('{"logOffset":1}\n{"at":0}\n{"at":0}', id="before two other sources"),
        pytest.param('{"logOffset":1}\n{"logOffset":1}', id="read twice"),
    ],
)
def test_the_files_of_the_first_source_are_compared_although_another_source_has_no_directory(
    offsets: str, tmp_path: Path
) -> None:
    """Such a source is a Delta table, for example, or a source in Python."""
    ours = checkpoint(tmp_path / "ours", f"v1\n{{}}\n{offsets}", "0")
    theirs = checkpoint(tmp_path / "theirs", f"v1\n{{}}\n{offsets}", "0")
    (tmp_path / "theirs/sources/0/1").write_text('v1\n{"path":"/in/x","timestamp":1,"batchId":1}')
    assert source_offsets(ours, 5) != source_offsets(theirs, 5)


@pytest.mark.parametrize(
    "offsets",
    [
        'v1\n{}\n{"at":0}\n{"logOffset":1}',
        'v2\n{}\n1:{"logOffset":1}\n0:{"at":0}',
        'v1\n{}\n{"at":0}\n{"logOffset":1}\n{"at":0}',
    ],
)
def test_the_files_of_a_source_after_one_without_a_directory_are_compared(offsets: str, tmp_path: Path) -> None:
    assert digests(checkpoint(tmp_path, offsets, "1"))[1] is not None


def test_the_directory_of_another_source_is_not_taken_for_a_file_log(tmp_path: Path) -> None:
    """Spark reads the first topic twice, so the file source has directory 1, and the second topic has directory 2."""
    offsets = 'v1\n{}\n{"t":{"0":7}}\n{"t":{"0":7}}\n{"logOffset":1}\n{"u":{"0":7}}'
    assert digests(checkpoint(tmp_path, offsets, "0", "1", "2")) == [None] * 4


@pytest.mark.parametrize("text", ["v3\n{}\n{}", "\n", "7"])
def test_an_unknown_version_is_refused(text: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match=r"offsets/5.*(version|torn)"):
        source_offsets(checkpoint(tmp_path, text), 5)


@pytest.mark.parametrize("text", ["", "v1", "v2\n{}\nno colon"])
def test_a_torn_file_is_refused(text: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="torn"):
        source_offsets(checkpoint(tmp_path, text), 5)


def test_the_planning_time_is_the_time_at_which_spark_began_the_batch(tmp_path: Path) -> None:
    files = checkpoint(tmp_path, 'v1\n{"batchWatermarkMs":3,"batchTimestampMs":1764345600000}\n{"t":{"0":7}}')
    assert planning_time_ms(files, 5) == 1764345600000


@pytest.mark.parametrize(
    ("text", "batch", "cause"),
    [
        ('v1\n{"batchWatermarkMs":3}\n{"t":{"0":7}}', 5, "contains no times"),
        ("v1\n{}\n-", 6, "does not exist"),
        ("v1", 5, "torn"),
        ("v1\n\n-", 5, "continuous"),
    ],
)
def test_the_error_for_a_batch_without_a_planning_time_gives_the_reason(
    text: str, batch: int, cause: str, tmp_path: Path
) -> None:
    with pytest.raises(ConfigurationError, match=rf"offsets/{batch}.*{cause}"):
        planning_time_ms(checkpoint(tmp_path, text), batch)


def test_only_whole_numbers_are_batches(tmp_path: Path) -> None:
    """``str.isdigit`` accepts the superscript, but ``int`` does not."""
    files = checkpoint(tmp_path, "v1\n{}\n-")
    for name in ("10", "7.compact", "²", "-1", "temporary"):
        (tmp_path / "offsets" / name).touch()
    assert numbers(files, "offsets") == {5, 10}
    assert numbers(files, "commits") == set()


@pytest.mark.parametrize("name", ["1", "1.compact"])
def test_the_files_of_a_batch_are_compared_although_the_store_lists_none(name: str) -> None:
    """Fails if the log or its entry is searched for in a listing: a replay would look like another history."""
    files = Objects(location="s3a://bucket/checkpoint")
    entry = json.dumps({"path": "/in/a", "timestamp": 1, "batchId": 1}).encode()
    files.content = {"offsets/5": b'v1\n{}\n{"logOffset":1}\n{"t":{"0":7}}', f"sources/0/{name}": b"v1\n" + entry}
    files.content["sources/1/0"] = b"v1\n{}"
    unlisted = source_offsets(files, 5)
    files.show()
    assert source_offsets(files, 5) == unlisted
    assert "digest" in (unlisted or ())[0]
