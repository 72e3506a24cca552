"""Open a staging location, and show it in messages without the keys that its URI may contain."""

from __future__ import annotations

import contextlib
import re
from typing import TYPE_CHECKING, Final
from urllib.parse import quote

import pyarrow as pa
from pyarrow import fs

from twopc.errors import ConfigurationError, UnavailableError
from twopc.redaction import Redaction
from twopc.uris import has_secrets, passwords_in, shown

if TYPE_CHECKING:
    from collections.abc import Iterator

#: A URI's path, and the options after it, such as ``?region=eu-central-1``. In a local path, ``?`` is part of a name.
_URI: Final = re.compile(r"(?!file:)([^?#]+://[^?#]*)(.*)")


def as_uri(location: str) -> str:
    """Convert a Hadoop path to a URI for pyarrow.

    A URI needs escapes, but a Hadoop path has none. A local path stays unchanged.
    """
    scheme, is_url, rest = location.partition("://")
    return f"{scheme}://{quote(rest, safe='/:@')}" if is_url else location


def below(location: str, name: str) -> str:
    """Return the location of a file or directory below a location. A URI's options stay at the end."""
    uri = _URI.fullmatch(location)
    path, options = uri.groups() if uri is not None else (location, "")
    return f"{path.rstrip('/')}/{name}{options}"


def open_location(location: str) -> tuple[fs.FileSystem, str]:
    """Open the file system of a staging location, and return the file system and the path.

    Raises:
        ConfigurationError: pyarrow does not support the location's file system.
    """
    try:
        if location.startswith("file:"):
            location = "/" + location.removeprefix("file:").lstrip("/")
        if "://" in location:
            filesystem, path = fs.FileSystem.from_uri(location)
        else:
            filesystem, path = fs.LocalFileSystem(), location
    except (pa.ArrowException, OSError, ValueError) as error:
        redacted = redaction_of(location)
        raise ConfigurationError(
            f"pyarrow cannot open staging={shown_below(location)!r} ({redacted(str(error))}). Set staging to a path that the "
            "driver and all workers share, such as a POSIX path, hdfs://, s3:// or gs://"
        ) from redacted.cause(error)
    return filesystem, path.rstrip("/")


def shown_below(location: str, name: str = "") -> str:
    """Return the location, or the location of a file below it, without keys."""
    return shown(below(location, name) if name else location)


def redaction_of(location: str) -> Redaction:
    """Return the object that masks a location's keys in the errors of its file system."""
    return Redaction([location, *passwords_in(location)] if has_secrets(location) else ())


@contextlib.contextmanager
def reaching(location: str, name: str, done: str) -> Iterator[None]:
    """Convert the errors of the file system. Without this, a user would see an error that does not mention staging."""
    try:
        yield
    except OSError as error:
        redacted = redaction_of(location)
        raise UnavailableError(
            f"staging: {shown_below(location, name)} could not be {done}: {redacted(str(error))}. No row is lost. Make sure that "
            "the driver and all workers can read and write in the staging directory, and that the file system has free space. "
            "Then restart the query"
        ) from redacted.cause(error)
