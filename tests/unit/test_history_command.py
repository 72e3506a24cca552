"""``twopc history``, ``show``, ``report``, ``diagnose``: their output and exit status."""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING, Any
from xml.etree import ElementTree as ET

import pytest
from typer.testing import CliRunner

from tests.unit.history_support import ended, failed, vote, write
from twopc.integration.cli import app
from twopc.progress import Cause, StateSize

if TYPE_CHECKING:
    from pathlib import Path

    from typer.testing import Result

EVIL = "<script>alert('x')</script> & [bold]markup[/bold]"
TRIED = Cause(reason="declined", phase="prepare", error="RetriableError", message="a broker was away")


@pytest.fixture
def checkpoint(tmp_path: Path) -> Path:
    return write(
        tmp_path / "checkpoint",
        [
            *[ended(number) for number in range(9)],
            ended(9, failed_attempts=(TRIED,), slowest=(vote(took_ms=1_900.0), vote(partition=0))),
            failed(10, "BadRecordError", f"{EVIL}\nsecond line", "declined"),
            b'{"format":"twopc-history/1","torn',
        ],
    )


def _run(*arguments: object) -> Result:
    return CliRunner().invoke(app, [str(argument) for argument in arguments], env={"COLUMNS": "80"})


def _json(*arguments: object) -> dict[str, Any]:
    result = _run(*arguments, "--json")
    assert result.exit_code in {0, 1}, result.output
    found: dict[str, Any] = json.loads(result.stdout)
    return found


def test_show_lists_retried_tasks_orphans_and_the_size_of_the_state(tmp_path: Path) -> None:
    sizes = {"rocksdbSstFileSize": 12_345}
    state = StateSize(operator="stateStoreSave", rows=1_000, memory_bytes=65_536, commit_ms=40, sizes=sizes)
    tried = vote(partition=3, attempt=2)
    write(tmp_path, [ended(0, retried=(tried,), state=(state,), orphans_ended=3), ended(1)])
    shown = _run("show", tmp_path, 0).stdout
    assert (
        "Task 3: only Spark's attempt 2 (on a) counts. The earlier attempts failed, and their rows were aborted."
        in shown
    )
    assert (
        "State at the trigger: stateStoreSave with 1,000 rows, 65,536 bytes in memory, rocksdbSstFileSize 12,345; "
        "committed in 40 ms." in shown
    )
    assert "Orphaned transactions (from a dead driver or a failed attempt) that were ended: 3." in shown
    assert _json("show", tmp_path, 0)["ended"][0]["state"][0]["sizes"] == sizes
    plain = _run("show", tmp_path, 1).stdout
    assert "Orphans" not in plain
    assert "State" not in plain
    assert "counts" not in plain


def test_history_prints_a_line_for_each_checkpoint_and_the_causes(checkpoint: Path) -> None:
    result = _run("history", checkpoint, "--last", 3)
    assert result.exit_code == 0
    lines = result.stdout.splitlines()
    assert [re.split(r"\s+", line.strip())[:3] for line in lines[1:4]] == [
        ["8", "completed", "tasks"],
        ["9", "completed", "tasks"],
        ["10", "declined", "2026-09-21T14:14:10Z"],
    ]
    assert f"10: BadRecordError: {EVIL}" in lines
    assert "10 completed, 1 declined; a completed one took 400 ms (median), 400 ms (p95)." in lines
    assert "Skipped 1 torn or foreign line: 00000000000001.jsonl:12." in lines


def test_history_can_show_only_failed_checkpoints(checkpoint: Path) -> None:
    assert [one["batch_id"] for one in _json("history", checkpoint, "--failed")["checkpoints"]] == [10]


def test_history_as_json_contains_counts_and_durations_and_the_checkpoint_in_progress(checkpoint: Path) -> None:
    (checkpoint / "offsets").mkdir()
    (checkpoint / "offsets" / "11").touch()
    found = _json("history", checkpoint)
    assert found["counts"] == {"completed": 10, "declined": 1, "expired": 0, "failed": 0}
    assert found["took_ms"] == {"min": 400.0, "median": 400.0, "p95": 400.0, "max": 400.0}
    assert found["in_progress"]["batch_id"] == 11
    assert found["skipped"] == ["00000000000001.jsonl:12"]
    assert found["checkpoints"][-1]["cause"]["error"] == "BadRecordError"


def test_show_prints_the_details_of_a_checkpoint(checkpoint: Path) -> None:
    output = _run("show", checkpoint, 9).stdout
    assert "Checkpoint 9 was triggered at 2026-09-21T14:14:05Z and completed at" in output
    assert (
        "The slowest of 4 tasks that acknowledged the checkpoint was task 2 on a. It took 1.9 s for 10,000 rows"
        in output
    )
    assert "The checkpoint's time limit was 600.0 s, set by CheckpointConfig.timeout_ms" in output
    assert "A failed attempt, which was retried (declined in prepare): RetriableError: a broker was away" in output
    assert len(_json("show", checkpoint, 9)["ended"]) == 1
    assert f"BadRecordError in prepare: {EVIL}" in _run("show", checkpoint, 10).stdout


def test_show_lists_the_existing_checkpoints_if_the_given_one_is_missing(checkpoint: Path) -> None:
    result = _run("show", checkpoint, 77)
    assert (result.exit_code, result.stdout) == (2, "")
    assert "does not contain checkpoint 77. The history covers checkpoints 0 to 10" in result.stderr


def test_diagnose_ends_with_status_1_if_something_is_found_and_0_if_not(checkpoint: Path, tmp_path: Path) -> None:
    result = _run("diagnose", checkpoint)
    assert result.exit_code == 1
    assert result.stdout.startswith(
        "1. A row cannot be written to the sink.\n   bad record: once, last at checkpoint 10"
    )
    assert _json("diagnose", checkpoint)["findings"][0]["rule"] == "bad record"
    healthy = _run("diagnose", write(tmp_path / "other", [ended(number) for number in range(9)]))
    assert (healthy.exit_code, healthy.stdout) == (0, "No problems were found in the last 9 checkpoints.\n")


@pytest.mark.parametrize("command", [("history",), ("show", 1), ("report",), ("diagnose",)])
@pytest.mark.parametrize("kind", ["absent", "file", "foreign", "newer", "unreadable"])
def test_bad_input_causes_a_one_line_error_and_status_2(command: tuple[object, ...], kind: str, tmp_path: Path) -> None:
    place = tmp_path / "place"
    if kind == "file":
        place.touch()
    elif kind != "absent":
        write(place, [b'{"format":"twopc-history/9"}' if kind == "newer" else b"\x00\x01"])
    if kind == "unreadable":
        (file,) = (place / "twopc" / "history").iterdir()
        file.unlink()
        file.symlink_to(file)  # not even root can open a loop
    name, *rest = command
    out = ["--out", tmp_path / "page.html"] if name == "report" else []
    result = _run(name, place, *rest, *out)
    assert (result.exit_code, result.stdout) == (2, "")
    assert result.stderr.startswith(f"twopc {name}: ")
    assert result.stderr.count("\n") == 1
    assert not (tmp_path / "page.html").exists()


# -- the page ----------------------------------------------------------------------------------------------------------


@pytest.fixture
def html(checkpoint: Path, tmp_path: Path) -> str:
    out = tmp_path / "page.html"
    result = _run("report", checkpoint, "--out", out)
    assert (result.exit_code, result.stdout) == (0, f"{out}: 11 checkpoints\n")
    return out.read_text()


def test_the_page_loads_no_other_files_and_escapes_the_values_that_it_shows(html: str) -> None:
    assert not re.search(r"<script|<link|<img|src=|href=|url\(|@import|https?:", html)
    assert "&lt;script&gt;alert(&#x27;x&#x27;)&lt;/script&gt; &amp; [bold]" in html
    assert "prefers-color-scheme: dark" in html


def test_the_timeline_has_a_bar_for_each_phase_and_a_mark_for_each_failure(html: str) -> None:
    timeline, rates = (ET.fromstring(svg) for svg in re.findall(r"<svg.*?</svg>", html, re.DOTALL))  # noqa: S314 - the SVG is our own
    groups = timeline.findall("g")
    assert len(groups) == 11
    assert [rect.get("class") for rect in groups[0].findall("rect")] == [
        "p-prepare",
        "p-confirm",
        "p-decide",
        "p-commit",
        "p-finish",
    ]
    assert [len(group.findall("polygon")) for group in groups] == [0] * 10 + [1]
    assert "10 declined: BadRecordError" in (groups[10].findtext("title") or "")
    line = rates.find("polyline")
    assert line is not None
    assert len(str(line.get("points")).split()) == 11


def test_a_bar_for_several_minutes_is_cut_so_that_it_does_not_dwarf_the_other_bars(tmp_path: Path) -> None:
    slow = failed(20, "CheckpointExpiredError", "too slow", "expired", took_ms=600_000.0, phases={"prepare": 600_000.0})
    out = tmp_path / "page.html"
    _run("report", write(tmp_path / "c", [*[ended(number) for number in range(20)], slow]), "--out", out)
    svg = re.findall(r"<svg.*?</svg>", out.read_text(), re.DOTALL)[0]
    groups = ET.fromstring(svg).findall("g")  # noqa: S314 - the SVG is our own
    heights = [sum(float(rect.get("height") or 0) for rect in group.findall("rect")) for group in groups]
    assert heights[0] > 50
    assert heights[20] == max(heights) <= 210.01
    assert groups[20].findtext("text") == "600.0 s"
