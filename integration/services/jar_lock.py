"""Compute the sizes and checksums (SHA-256) of the jars on disk, and compare the results with `jars.lock.json`."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

LOCK_FILE = Path(__file__).with_name("jars.lock.json")

_SUMS_FILE = "sums.json"

Sums = dict[str, dict[str, str | int]]
"""Maps the path of a file below the directory of a jar set to {"size": bytes, "sha256": hex}."""


def read_lock(file: Path) -> dict[str, Sums]:
    """Return the locked checksums of each jar set, by its name. Return {} if the lock file does not exist."""
    if not file.exists():
        return {}
    lock: dict[str, Sums] = json.loads(file.read_text())
    return lock


def write_lock(lock: dict[str, Sums]) -> None:
    """Replace the lock file."""
    LOCK_FILE.write_text(json.dumps(lock, indent=1, sort_keys=True) + "\n")


def files_in(directory: Path) -> list[Path]:
    """Return every jar below a directory."""
    return sorted(directory.rglob("*.jar"))


def sums_of(directory: Path) -> Sums:
    """Return the size and the checksum of every jar below a directory. All Kafka jars (44 MB) take 0.05 to 0.2 s."""
    return {
        path.relative_to(directory).as_posix(): {
            "size": path.stat().st_size,
            "sha256": hashlib.sha256(path.read_bytes()).hexdigest(),
        }
        for path in files_in(directory)
    }


def record_sums(directory: Path) -> None:
    """Write the checksums of a complete jar set next to its jars, so that a jar set without a lock can be checked later."""
    (directory / _SUMS_FILE).write_text(json.dumps(sums_of(directory), indent=1))


def damage(directory: Path, locked: Sums | None) -> str:
    """Describe the damage to a jar set in the cache. Return "" if the jar set is complete and unchanged."""
    try:
        expected: Sums = locked or json.loads((directory / _SUMS_FILE).read_text())
        return difference(sums_of(directory), expected)
    except (OSError, ValueError) as error:
        return f"not readable ({error})"


def difference(actual: Sums, expected: Sums) -> str:
    """Describe the first file that is missing, unexpected or different. Return "" if the jar sets are equal."""
    for name in sorted(expected.keys() | actual.keys()):
        if name not in actual:
            return f"{name} is missing"
        if name not in expected:
            return f"{name} is not part of the set"
        if actual[name] != expected[name]:
            return f"{name} has different content ({actual[name]['size']} bytes, expected {expected[name]['size']})"
    return ""
