"""Test the operations that a directory must support, before a row is written and before another driver is fenced."""

from __future__ import annotations

import logging
import uuid
from typing import TYPE_CHECKING

from twopc.errors import ConfigurationError
from twopc.files import LocalFiles, UnlinkedFiles, is_unsupported

if TYPE_CHECKING:
    from twopc.files import Files

logger = logging.getLogger(__name__)


def tried(files: Files) -> Files:
    """Create, read, list and remove a test file, once for each run.

    Returns:
        ``files``; or, on a file system without hard links, the same directory treated as an object store.

    Raises:
        ConfigurationError: the directory cannot be used.
    """
    failed = _try(files)
    if failed is None:
        return files
    doing, why = failed
    if is_unsupported(why) and isinstance(files, LocalFiles) and files.is_atomic:
        text = (
            "%s: this file system has no hard links or cannot sync a directory (%s). Therefore, the query must keep its "
            "decisions in a Kafka ledger"
        )
        logger.warning(text, files.location, why)
        return tried(UnlinkedFiles(files.location))
    raise ConfigurationError(
        f"{files.location}, the directory next to the checkpoint, cannot be used, because {doing} failed: {_said(why)}. "
        "Nothing was written, and no other run was stopped. The driver creates, reads, lists and deletes small files in "
        "this directory. Allow these operations, or free some space, and restart the query. For a new query, you can also use "
        "a checkpoint on another file system. If the query writes to Kafka and has run before, act soon: decided transactions "
        "that are not yet committed will expire (kafka.transaction.timeout.ms), and their rows will then be lost. "
        "If a Kafka ledger contains the decisions, `twopc transactions commit` commits these transactions without this directory"
    ) from (why if isinstance(why, Exception) else None)


def _try(files: Files) -> tuple[str, object] | None:
    """Return which step failed, and why."""
    name, doing = f".tried-{uuid.uuid4().hex}", "creating a file"
    try:
        if not files.put_if_absent(name, b"1"):
            return doing, "the file system reports that the name is taken, but no other program uses that name"
        doing = "reading a file"
        if (found := files.read(name)) != b"1":
            return doing, f"the file contains {found!r}, but b'1' was written"
        doing = "checking that an existing file cannot be replaced"
        if files.put_if_absent(name, b"2") and files.is_atomic:
            return doing, "the first file was replaced, so two drivers could both decide the same batch"
        doing = "listing the directory"
        files.names("")
    except Exception as error:  # noqa: BLE001 - a file system may raise anything
        return doing, error
    finally:
        _remove(files, name)
    return None


def _remove(files: Files, name: str) -> None:
    try:
        files.remove(name)
    except Exception as error:  # noqa: BLE001 - a file system may raise anything; only old files are ever deleted
        text = "%s: a file could not be deleted, so files that the driver no longer needs will accumulate. Cause: %s"
        logger.warning(text, files.location, _said(error))


def _said(why: object) -> str:
    """Return the error's text, without the JVM's stack trace."""
    found = getattr(why, "java_exception", None)
    return str(why if found is None else found.toString())
