"""Archives of the classes that a Java program loads: with one, Kafka and Spark, which load thousands, start much sooner.

A dynamic archive of class data (JEP 350, Java 13 and newer) is written by a first run, to its orderly end, and mapped by
every later one. A JVM that does not accept it (another class path, another Java) goes on without, silently.
"""

from __future__ import annotations

import hashlib
import logging
from typing import TYPE_CHECKING

from filelock import FileLock

from integration.services.java import ServiceError, java_home

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

logger = logging.getLogger(__name__)

# A start of Kafka (format included) took 3.2 s with these and 3.9 s without, three runs each on 2 cores.
FAST_START = ("-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-XX:-UsePerfData")
"""Flags of a JVM that compiles quickly and does without what only pays in long runs."""

_SILENT = ("-Xshare:auto", "-Xlog:cds=off", "-Xlog:cds+dynamic=off", "-Xlog:class+path=off")
#: Maker and machine of a Java, in every installation's root.
_RELEASE = "release"


def archive_in(directory: Path, name: str) -> Path:
    """Where the archive of a program is: named for the Java that runs it, too, since no other can use it."""
    release = java_home() / _RELEASE
    java = release.read_bytes() if release.exists() else str(java_home()).encode()
    return directory / f"{name}-{hashlib.sha256(java).hexdigest()[:12]}.jsa"


def class_data_flags(archive: Path, train: Callable[[Sequence[str]], object]) -> tuple[str, ...]:
    """Flags with which a JVM starts from the archive, which is made first if it is not there.

    Args:
        archive: its file. An empty one says that it could not be made: that is not tried again.
        train: runs the program once, to its orderly end, with the flags that it is given.

    Returns:
        no flags, where there is no archive: the program only starts slower.
    """
    try:
        archive.parent.mkdir(parents=True, exist_ok=True)
        with FileLock(archive.with_suffix(".lock")):
            if not archive.exists():
                _make(archive, train)
        is_usable = archive.stat().st_size > 0
    except OSError as error:
        logger.warning("no archive of class data at %s: %s", archive, error)
        return ()
    return (f"-XX:SharedArchiveFile={archive}", *_SILENT) if is_usable else ()


def _make(archive: Path, train: Callable[[Sequence[str]], object]) -> None:
    made = archive.with_suffix(".new")
    made.unlink(missing_ok=True)
    try:
        train((f"-XX:ArchiveClassesAtExit={made}", *_SILENT))
    except ServiceError as error:
        logger.warning("no archive of class data: %s", error)
    if not made.exists():
        made.touch()
    made.rename(archive)
