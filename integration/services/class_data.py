"""Class data archives (JEP 350, Java 13 and newer): Kafka and Spark load thousands of classes and start much faster with one.

A first run writes the archive when it exits normally; later runs map it. A JVM that cannot use an archive (another class
path, another Java) silently runs without it.
"""

from __future__ import annotations

import hashlib
import logging
from typing import TYPE_CHECKING

from filelock import FileLock

from integration.services.errors import ServiceError
from integration.services.java import java_home

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

logger = logging.getLogger(__name__)

_SILENT = ("-Xshare:auto", "-Xlog:cds=off", "-Xlog:cds+dynamic=off", "-Xlog:class+path=off")
#: A file in the root of every Java installation; names its vendor, version and platform.
_RELEASE = "release"


def archive_in(directory: Path, name: str) -> Path:
    """Return the archive file of a program; its name includes the Java, because no other Java can use it."""
    release = java_home() / _RELEASE
    java = release.read_bytes() if release.exists() else str(java_home()).encode()
    return directory / f"{name}-{hashlib.sha256(java).hexdigest()[:12]}.jsa"


def class_data_flags(archive: Path, train: Callable[[Sequence[str]], object]) -> tuple[str, ...]:
    """Return the JVM flags that use an archive; creates the archive first if it does not exist.

    Args:
        archive: its file. An empty file records that creating it failed: it is not tried again.
        train: runs the program once, with the flags given to it, until it exits normally.

    Returns:
        no flags if there is no archive: the program only starts more slowly.
    """
    try:
        archive.parent.mkdir(parents=True, exist_ok=True)
        with FileLock(archive.with_suffix(".lock")):
            if not archive.exists():
                _create(archive, train)
        is_usable = archive.stat().st_size > 0
    except OSError as error:
        logger.warning("no class data archive, starts are slower: cannot write %s: %s", archive, error)
        return ()
    return (f"-XX:SharedArchiveFile={archive}", *_SILENT) if is_usable else ()


def _create(archive: Path, train: Callable[[Sequence[str]], object]) -> None:
    created = archive.with_suffix(".new")
    created.unlink(missing_ok=True)
    try:
        train((f"-XX:ArchiveClassesAtExit={created}", *_SILENT))
    except ServiceError as error:
        logger.warning("no class data archive, starts are slower: %s. To try again, delete %s", error, archive)
    if not created.exists():
        created.touch()
    created.rename(archive)
