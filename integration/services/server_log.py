"""Read a server's log, to see whether it is ready or why its start failed."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path

_TAIL_LINES = 25

LOG4J = """\
log4j.rootLogger=INFO, out
log4j.appender.out=org.apache.log4j.ConsoleAppender
log4j.appender.out.layout=org.apache.log4j.PatternLayout
log4j.appender.out.layout.ConversionPattern=[%d] %p %m (%c)%n
"""
"""Settings of log4j 1 (reload4j) that write the log this module reads: one line per entry, to stdout."""


def size(path: Path) -> int:
    """Return the size of a log in bytes; 0 if it does not exist yet."""
    return path.stat().st_size if path.exists() else 0


def text_since(path: Path, offset: int) -> str:
    """Return what a log has after its first `offset` bytes."""
    return path.read_bytes()[offset:].decode(errors="replace") if path.exists() else ""


def tail(log: str) -> str:
    """Return the interesting end of a log: from its first error on, else the last lines.

    The first error, because an orderly shutdown may follow it. Stack frames and dumps of settings (indented by a tab) are
    left out.
    """
    lines = [line for line in log.splitlines() if line.strip() and not line.startswith("\t")]
    errors = [i for i, line in enumerate(lines) if "Exception" in line or "] ERROR" in line or "] FATAL" in line]
    chosen = lines[errors[0] :][:_TAIL_LINES] if errors else lines[-_TAIL_LINES:]
    return "\n".join(chosen) or "(empty)"
