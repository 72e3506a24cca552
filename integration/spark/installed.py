"""Tell whether the driver and a Python worker have imported the same code of this toolkit.

Spark pickles a task with the names of its classes, so a worker runs the code that the worker itself has imported under these
names. The code of another version might write other keys or values, without any error.
"""

from __future__ import annotations

import hashlib
import socket
from dataclasses import dataclass
from importlib import import_module
from importlib.resources import files
from typing import TYPE_CHECKING, Final

from twopc.errors import ConfigurationError

if TYPE_CHECKING:
    from collections.abc import Iterator
    from importlib.abc import Traversable

_DIGITS: Final = 12
#: The parts of ``twopc.integration`` whose code runs inside queries.
_PARTS: Final = ("alerts", "connect", "history", "migrate", "operate", "spark", "verify")


@dataclass(frozen=True)
class Installed:
    """The toolkit's code in one process.

    Attributes:
        version: the version.
        digest: identifies the source code that a task may run; empty if the package contains no source code.
        place: the directory or the archive's directory that contains the package.
    """

    version: str
    digest: str
    place: str

    def __str__(self) -> str:
        code = f"source code {self.digest}" if self.digest else "no source code"
        return f"version {self.version} in {self.place} ({code})"

    def require_same(self, other: Installed, whose: str) -> None:
        """Check that this process runs the same code as another process: the same version and, if known, the same source code.

        Args:
            other: the other process's code.
            whose: names the other process.

        Raises:
            ConfigurationError: this process runs different code.
        """
        is_known = bool(self.digest and other.digest)
        if self.version != other.version or (is_known and self.digest != other.digest):
            host = socket.gethostname()
            raise ConfigurationError(
                f"the {whose} and a Python process on host {host} run different code of this toolkit, so they might write "
                "different keys or values. The process wrote nothing, and no data is at risk. Install the same version of "
                "spark-twopc on every host. Then stop the whole Spark application and start it again, because a running Python "
                f"process keeps the code that it has imported. The {whose} runs {other}. The process on host {host} runs {self}"
            )


#: The code of a process that does not name its code.
UNKNOWN: Final = Installed("unknown", "", "an unknown place")


def digest_of(package: Traversable) -> str:
    """Return the digest of the source code that a task may run: the same for a checkout, a wheel and an archive."""
    digest = hashlib.sha256()
    integration = package / "integration"
    # The tasks of a hand-over compare rows, with modules of ``migrate`` and ``verify``. Spark Connect's server runs the
    # client's listeners and interceptors with its own code.
    parts = [package / "sinks", *(integration / part for part in _PARTS)]
    sources = [*_sources(package), *(source for part in parts for source in _all_sources(part))]
    sources += [one for one in _sources(integration) if one[0] == "topic_reader.py"]
    for name, source in sources:
        body = source.replace(b"\r\n", b"\n")  # Git may change the line endings of a checkout
        digest.update(f"{name} {len(body)}\n".encode() + body)
    return digest.hexdigest()[:_DIGITS] if sources else ""


def _all_sources(directory: Traversable) -> Iterator[tuple[str, bytes]]:
    """Yield the sources in the directory, and in the directories below."""
    if directory.is_dir():
        for name, source in _sources(directory):
            yield f"{directory.name}/{name}", source
        for entry in _sorted(directory):
            yield from _all_sources(entry)


def _sources(directory: Traversable) -> Iterator[tuple[str, bytes]]:
    return ((entry.name, entry.read_bytes()) for entry in _sorted(directory) if entry.name.endswith(".py"))


def _sorted(directory: Traversable) -> list[Traversable]:
    return sorted(directory.iterdir(), key=lambda entry: entry.name)


#: Computed while this process imports the toolkit, because another version may be installed at the same place later.
HERE: Final = Installed(import_module("twopc").__version__, digest_of(files("twopc")), str(files("twopc")).rstrip("/"))
