"""What a server's log says about a start that failed."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path

_TAIL_LINES = 25


def size(path: Path) -> int:
    """Return how long a log is, in bytes; 0 before there is one."""
    return path.stat().st_size if path.exists() else 0


def text_since(path: Path, offset: int) -> str:
    """Return what was written to a log after its first `offset` bytes."""
    return path.read_bytes()[offset:].decode(errors="replace") if path.exists() else ""


def tail(log: str) -> str:
    """Return what a log ends with: from its first error on, since an orderly shutdown may follow; else the last lines.

    Frames of stack traces and the dump of all settings are left out.
    """
    lines = [line for line in log.splitlines() if line.strip() and not line.startswith("\t")]
    errors = [i for i, line in enumerate(lines) if "Exception" in line or "] ERROR" in line or "] FATAL" in line]
    chosen = lines[errors[0] :][:_TAIL_LINES] if errors else lines[-_TAIL_LINES:]
    return "\n".join(chosen) or "(empty)"
