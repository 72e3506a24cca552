"""Checkpoints and savepoints by URL: ``file:`` is a local directory, anything else is refused before something is written."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.live.operate.support import command
from tests.unit.history_support import ended, write
from tests.unit.savepoint_support import saving
from tests.unit.test_savepoint import checkpoint
from twopc.errors import ConfigurationError
from twopc.integration.local_paths import local_path
from twopc.integration.operate import create_savepoint, restore_savepoint

__all__ = ["checkpoint"]


@pytest.mark.parametrize(
    ("given", "path"),
    [
        ("/a/b", "/a/b"),
        ("a/b", "a/b"),
        ("file:///a/b%20c", "/a/b%20c"),
        ("file:/a/b", "/a/b"),
        ("file://localhost/a", "/a"),
        ("C:/a", "C:/a"),
        ("./hdfs:/a", "hdfs:/a"),
    ],
)
def test_a_local_location_is_converted_to_a_path(given: str, path: str) -> None:
    assert local_path(given) == Path(path)


def test_commands_accept_file_urls(checkpoint: Path, tmp_path: Path) -> None:
    write(checkpoint, [ended(3)])
    (checkpoint / "metadata").write_text('{"id":"old"}')
    url, kept = f"file://{checkpoint}", f"file://{tmp_path}/kept"
    assert command("history", url).status == 0
    assert command("show", url, "3").status == 0
    assert command("report", url, "--out", str(tmp_path / "page.html")).status == 0
    (tmp_path / "rules").write_text("consecutive.count=3\n")
    assert command("alerts", url, "--rules", str(tmp_path / "rules")).status == 0
    assert command("status", url, "--json").facts["checkpoint"]["last_finished"] == 3
    assert command("savepoint", "create", url, kept).status == 0
    assert command("savepoint", "list", kept).status == 0
    assert command("savepoint", "restore", kept, f"file://{tmp_path}/new").status == 0
    assert (tmp_path / "new/commits/3").exists()


@pytest.mark.parametrize(
    "words",
    [
        ("history", "URL"),
        ("show", "URL", "3"),
        ("report", "URL"),
        ("diagnose", "URL"),
        ("status", "URL"),
        ("savepoint", "create", "URL", "kept"),
        ("savepoint", "create", "HERE", "URL"),
        ("savepoint", "list", "URL"),
        ("savepoint", "restore", "URL", "new"),
        ("savepoint", "restore", "KEPT", "URL"),
        ("savepoint", "stop-with-savepoint", "URL", "kept"),
        ("savepoint", "stop-with-savepoint", "HERE", "URL"),
    ],
)
@pytest.mark.parametrize("url", ["hdfs://nn:8020/checkpoints/orders", "s3a://bucket/orders"])
def test_a_location_on_another_file_system_is_refused_in_one_line_and_nothing_is_written(
    checkpoint: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, words: tuple[str, ...], url: str
) -> None:
    if "KEPT" in words:
        create_savepoint(checkpoint, tmp_path / "kept")
    (tmp_path / "cwd").mkdir()
    monkeypatch.chdir(tmp_path / "cwd")
    named = {"URL": url, "HERE": str(checkpoint), "KEPT": str(tmp_path / "kept")}
    said = command(*(named.get(word, word) for word in words))
    assert (said.status, said.error.count("\n")) == (2, 1), said
    assert "is not on this machine" in said.error and "pass the copy's path" in said.error
    assert not list((tmp_path / "cwd").iterdir())


def test_the_python_api_also_refuses_other_file_systems(checkpoint: Path, tmp_path: Path) -> None:
    url = "hdfs://nn/x"
    with pytest.raises(ConfigurationError, match="not on this machine"):
        saving(lambda *_: None, url)(0)
    with pytest.raises(ConfigurationError, match="not on this machine"):
        restore_savepoint(create_savepoint(checkpoint, tmp_path / "kept").path, Path(url))
