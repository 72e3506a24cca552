"""A class data archive is created once and used by every later start; a failure to create it never prevents a start."""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import TYPE_CHECKING

from twopc.integration.services import ServiceError
from twopc.integration.services.class_data import archive_in, class_data_flags
from twopc.integration.services.java import java_command

if TYPE_CHECKING:
    from collections.abc import Sequence


def version(flags: Sequence[str]) -> str:
    """The simplest program: Java prints its version."""
    command = [str(java_command()), "-XX:+UseSerialGC", *flags, "-Xlog:class+load=info", "-version"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)
    return done.stdout + done.stderr


def test_the_first_run_creates_the_archive_and_later_runs_load_classes_from_it(tmp_path: Path) -> None:
    runs: list[Sequence[str]] = []

    def train(flags: Sequence[str]) -> None:
        runs.append(flags)
        version(flags)

    archive = archive_in(tmp_path / "data", "java")
    flags = class_data_flags(archive, train)
    assert class_data_flags(archive, train) == flags
    assert len(runs) == 1
    assert f"-XX:SharedArchiveFile={archive}" in flags
    assert archive.stat().st_size > 0
    assert "shared objects file (top)" in version(flags)


def test_a_failed_training_run_is_not_repeated(tmp_path: Path) -> None:
    runs: list[Sequence[str]] = []

    def train(flags: Sequence[str]) -> None:
        runs.append(flags)
        raise ServiceError("it does not start")

    archive = tmp_path / "a.jsa"
    assert class_data_flags(archive, train) == class_data_flags(archive, train) == ()
    assert len(runs) == 1


def test_no_jvm_flags_are_returned_without_a_writable_directory(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    assert class_data_flags(Path(tmp_path, "file", "a.jsa"), version) == ()


def test_an_invalid_archive_is_ignored_silently(tmp_path: Path) -> None:
    archive = tmp_path / "a.jsa"
    archive.write_bytes(b"no archive")
    output = version(class_data_flags(archive, version))
    assert "no archive" not in output
    assert "warning" not in output.lower()
