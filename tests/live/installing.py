"""Make environments that contain nothing from this environment or source tree."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@dataclass(frozen=True)
class Installed:
    """An environment with the wheel and some extras, without anything from this environment or source tree."""

    directory: Path

    def __call__(self, *command: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [shutil.which(command[0], path=self._variables()["PATH"]) or command[0], *command[1:]],
            cwd=self.directory,
            env=self._variables(),
            capture_output=True,
            text=True,
            check=False,
        )

    def first_lines(self, count: int, command: str) -> list[str]:
        """The first lines that a shell command prints. The command need not end by itself."""
        with subprocess.Popen(
            ["/bin/sh", "-c", f"exec {command}"],
            cwd=self.directory,
            env=self._variables(),
            stdout=subprocess.PIPE,
            text=True,
        ) as process:
            assert process.stdout is not None
            found = [line.strip() for line in islice(process.stdout, count)]
            process.kill()
        return found

    def _variables(self) -> dict[str, str]:
        """The environment variables of a shell in which this environment is activated."""
        path = f"{self.directory / 'bin'}{os.pathsep}{os.environ['PATH']}"
        return environment() | {"PATH": path, "PYTHONUNBUFFERED": "1"}

    def error(self, code: str) -> str:
        """The last line of Python's error message."""
        done = self("python", "-c", code)
        assert done.returncode == 1, done.stdout + done.stderr
        return done.stderr.strip().splitlines()[-1]


def environment() -> dict[str, str]:
    foreign = ("PYTHON", "PYSPARK", "SPARK_", "VIRTUAL_ENV", "UV_", "TWOPC_")
    return {name: value for name, value in os.environ.items() if not name.startswith(foreign)}


def uv(*arguments: str, target: Path | None = None) -> None:
    command = shutil.which(ROOT / ".uv" / "bin" / "uv") or shutil.which("uv")
    if command is None:
        pytest.skip("needs uv: make setup")
    variables = {"UV_PYTHON_DOWNLOADS": "never", "UV_SYSTEM_CERTS": "1"}
    if target is not None:
        variables["UV_PROJECT_ENVIRONMENT"] = str(target)
    done = subprocess.run(
        [command, *arguments], cwd=ROOT, env=environment() | variables, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr


def interpreter() -> str:
    """The Python from which this environment was made."""
    return str(getattr(sys, "_base_executable", sys.executable))
