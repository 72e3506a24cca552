"""Create a separate Python environment for each peer, once, in ``.bench`` at the root of the repository."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from benchmarks.measured import MissingError
from twopc.integration.services.java import java_home

if TYPE_CHECKING:
    from collections.abc import Sequence

_ROOT: Final = Path(__file__).parents[2]
_DIRECTORY: Final = _ROOT / ".bench"
_READY: Final = "requirements.txt"
_INSTALL_TIMEOUT_S: Final = 900
_RUN_TIMEOUT_S: Final = 600


def python_with(*requirements: str) -> Path:
    """Return the Python interpreter from an environment with these packages, each given as ``name==version``.

    Raises:
        MissingError: the packages cannot be installed.
    """
    home = _DIRECTORY / requirements[0].replace("==", "-")
    python = home / "bin" / "python"
    wanted = "\n".join(requirements)
    ready = home / _READY
    if ready.exists() and ready.read_text() == wanted:
        return python
    shutil.rmtree(home, ignore_errors=True)
    uv = shutil.which("uv", path=os.pathsep.join([str(_ROOT / ".uv" / "bin"), os.environ.get("PATH", "")]))
    if uv is None:
        raise MissingError(f"{requirements[0]} cannot be installed, because uv is missing. Run make setup")
    for command in (
        ["venv", "--python", sys.executable, str(home)],
        ["pip", "install", "--python", str(python), *requirements],
    ):
        _checked([uv, *command], f"installing {requirements[0]}", _INSTALL_TIMEOUT_S)
    ready.write_text(wanted)
    return python


def run_query(python: Path, script: Path, *arguments: str) -> None:
    """Run a peer's query with this machine's Java until the query ends.

    Raises:
        MissingError: the query failed. The message contains the end of its output.
    """
    _checked([str(python), str(script), *arguments], script.name, _RUN_TIMEOUT_S)


def _checked(command: Sequence[str], doing: str, timeout_s: float) -> None:
    # An activated environment would take precedence over the peer's, and this project's packages over the peer's packages.
    kept = {name: value for name, value in os.environ.items() if name not in {"VIRTUAL_ENV", "PYTHONPATH"}}
    environment = {**kept, "JAVA_HOME": str(java_home()), "UV_PYTHON_DOWNLOADS": "never", "UV_SYSTEM_CERTS": "1"}
    how: dict[str, Any] = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True, "env": environment}
    try:
        done = subprocess.run(command, timeout=timeout_s, check=False, **how)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise MissingError(f"{doing}: {error}") from error
    if done.returncode:
        raise MissingError(f"{doing} exited with code {done.returncode}: {done.stdout.strip()[-400:]}")
