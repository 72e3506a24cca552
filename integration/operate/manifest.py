"""Write and read a savepoint's manifest, which lists the files with checksums. The manifest is written last.

A directory without a manifest is not a savepoint.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Final, NamedTuple

import msgspec

from twopc.errors import ConfigurationError
from twopc.files import is_inside
from twopc.integration.local_paths import local_path
from twopc.integration.operate.durable import Copied, measure
from twopc.integration.operate.rocksdb import UnknownFilesError, missing_files
from twopc.sealed import unseal_file

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

logger = logging.getLogger(__name__)

NAME: Final = "manifest.json"
#: The directory for the checkpoint's files.
TREE: Final = "checkpoint"
FORMAT: Final = "twopc-savepoint/1"
_DIRECTORY: Final = "savepoint-"


class Position(msgspec.Struct, frozen=True, kw_only=True):
    """The position in a sink's decision log when the savepoint was taken.

    Attributes:
        decided: the highest decided batch; None if no batch is decided.
        end: the position after the log's last record.
    """

    log: str
    decided: int | None
    end: int


class Manifest(msgspec.Struct, frozen=True, kw_only=True):
    """The manifest of a savepoint.

    Attributes:
        query_id: the query whose checkpoint was copied.
        batch_id: the last batch in the savepoint. Spark has finished this batch. If the decisions could be read, they
            contain the batch.
        offsets: the batch's source offsets, as the protocol compares them.
        taken_from: the checkpoint location, for information only, because a savepoint may be moved.
        at_ms: when the savepoint was taken, in ms since 1970 UTC.
        log: the checkpoint's decision log; None if the query had no decision log.
        sinks: the sinks that the checkpoint was bound to.
        positions: for each sink, the position in its decision log, if the log could be read.
        files: the savepoint's files, by their names below :data:`TREE`.
        is_periodic: whether the query took the savepoint automatically, and will delete it when enough newer savepoints exist.
    """

    format: str = FORMAT
    query_id: str
    batch_id: int
    offsets: tuple[str, ...]
    taken_from: str
    at_ms: int
    log: str | None
    sinks: dict[str, dict[str, str]]
    positions: dict[str, Position]
    files: dict[str, Copied]
    is_periodic: bool = False


class Savepoint(NamedTuple):
    """An existing savepoint."""

    path: Path
    manifest: Manifest

    @property
    def size(self) -> int:
        """The total size of the savepoint's files, in bytes."""
        return sum(copied.size for copied in self.manifest.files.values())


def directory_name(batch_id: int, at_ms: int) -> str:
    """Build a savepoint's directory name. Sorting a query's savepoints by name puts the oldest first."""
    return f"{_DIRECTORY}{batch_id:010d}-{at_ms}"


def open_savepoint(path: Path) -> Savepoint:
    """Read a savepoint's manifest.

    Raises:
        ConfigurationError: the path is not a savepoint, the savepoint was not finished, or its manifest is torn, has an
            unsupported version, or names a file outside the savepoint.
    """
    try:
        data = (path / NAME).read_bytes()
    except (FileNotFoundError, NotADirectoryError) as error:
        raise ConfigurationError(
            f"{path} is not a savepoint, or is an incomplete savepoint: {NAME} is missing from it"
        ) from error
    except OSError as error:
        raise ConfigurationError(f"{path} cannot be read: {error}") from error
    remedy = "Use another savepoint"
    manifest = unseal_file(f"{path}/{NAME}", data, Manifest, of_format=FORMAT, remedy=remedy)
    for name in manifest.files:
        if not is_inside(name):  # the checksums prove that nothing was altered, but not who wrote the manifest
            raise ConfigurationError(
                f"{path}/{NAME} names the file {name!r}, which is not in the savepoint. This toolkit does not write such names, "
                f"so somebody may have forged the savepoint. Nothing was read or written. {remedy}"
            )
    return Savepoint(path, manifest)


def check(savepoint: Savepoint) -> None:
    """Read every file in a savepoint, and check that no RocksDB file to which the state refers is missing.

    Earlier versions of this toolkit took savepoints without the second check.

    Raises:
        ConfigurationError: a file is missing or altered.
    """
    for name in savepoint.manifest.files:
        try:
            found = measure(savepoint.path / TREE / name)
        except OSError as error:
            raise ConfigurationError(f"{savepoint.path} is damaged: {name} cannot be read ({error})") from error
        require_intact(savepoint, name, found)
    try:
        missing = missing_files(savepoint.path / TREE, savepoint.manifest.files.keys())
    except UnknownFilesError as error:
        raise ConfigurationError(
            f"{savepoint.path} cannot be checked: {error}. The savepoint might lack some of these files. Use another savepoint, "
            "or a version of this toolkit that supports the version of Spark that wrote the snapshot"
        ) from error
    if missing:
        raise ConfigurationError(
            f"{savepoint.path} is incomplete: its state needs RocksDB files that are missing, such as {missing[0]}. "
            "No query can continue from it. An earlier version of this toolkit took the savepoint after Spark had deleted these "
            "files. Use another savepoint, or take a new one"
        )


def require_intact(savepoint: Savepoint, name: str, found: Copied) -> None:
    """Compare a file, as it was read, with the manifest.

    Raises:
        ConfigurationError: the file is altered.
    """
    if found != savepoint.manifest.files[name]:
        raise ConfigurationError(
            f"{savepoint.path} is damaged: {name} was altered or is torn. Use an earlier savepoint"
        )


def savepoints_in(directory: Path) -> tuple[list[Savepoint], list[str]]:
    """Return a directory's savepoints, newest first, and the reasons why other savepoints could not be opened.

    Raises:
        ConfigurationError: the directory does not exist.
    """
    directory = local_path(directory)
    if not directory.is_dir():
        raise ConfigurationError(f"directory {directory} does not exist")
    found, problems = [], []
    for path in sorted(directory.glob(f"{_DIRECTORY}*")):
        try:
            found.append(open_savepoint(path))
        except ConfigurationError as error:
            problems.append(str(error))
    return _newest_first(found), problems


def _newest_first(found: Sequence[Savepoint]) -> list[Savepoint]:
    """Order a query's savepoints by their batches, because a clock can be set back. Order different queries only by time."""
    last_ms: dict[str, int] = {}
    for _, one in found:
        last_ms[one.query_id] = max(one.at_ms, last_ms.get(one.query_id, one.at_ms))

    def age(savepoint: Savepoint) -> tuple[int, str, int, int]:
        one = savepoint.manifest
        return last_ms[one.query_id], one.query_id, one.batch_id, one.at_ms

    return sorted(found, key=age, reverse=True)


def choose(path: Path) -> Savepoint:
    """Open a savepoint or, in a directory of savepoints, the newest good savepoint.

    Raises:
        ConfigurationError: the path is not a savepoint and does not contain a good savepoint.
    """
    path = local_path(path)
    try:
        return open_savepoint(path)
    except ConfigurationError:
        if not path.is_dir() or not any(path.glob(f"{_DIRECTORY}*")):
            raise
    return newest_good(path)


def newest_good(directory: Path) -> Savepoint:
    """Find a directory's newest savepoint that has no missing or altered file.

    Raises:
        ConfigurationError: the directory contains no usable savepoint.
    """
    found, problems = savepoints_in(directory)
    for one in found:
        try:
            check(one)
        except ConfigurationError as error:
            problems.append(str(error))
        else:
            for problem in problems:
                logger.warning(
                    "using the savepoint %s, because a newer savepoint is damaged. Cause: %s", one.path, problem
                )
            return one
    raise ConfigurationError("; ".join([f"{directory} contains no intact savepoint", *problems]))
