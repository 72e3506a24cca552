"""A PostgreSQL server on small disks, which a test can fill: one for the write-ahead log, and one for tables.

The disks are file systems in memory, in a mount namespace that only the server and one shell have entered. A user namespace
gives the shell the right to mount them. So no test needs root, and even a killed test run leaves no mount behind.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
from typing import TYPE_CHECKING, Final

import psycopg

from twopc.integration.services import ServiceError
from twopc.integration.services.postgres import LocalPostgres

if TYPE_CHECKING:
    from pathlib import Path

    from twopc.integration.services.guard import GuardedProcess

_PROGRAMS: Final = ("unshare", "nsenter", "mount")
#: The size of the disk for the WAL. A WAL segment takes 16 MB, and the server starts with one segment.
_WAL_MB: Final = 52
_TABLES_MB: Final = 2


class NoNamespaceError(Exception):
    """This machine does not let this user mount a file system, not even in a separate namespace."""


class Namespace:
    """A mount namespace, held open by a shell. The shell ends when this process ends."""

    def __init__(self, user: int | None) -> None:
        """Open the namespace.

        Args:
            user: the id of the user that owns it; None: this process's own user.

        Raises:
            NoNamespaceError: see there.
        """
        if missing := [program for program in _PROGRAMS if not shutil.which(program)]:
            raise NoNamespaceError(f"not installed: {', '.join(missing)}")
        self._user = os.getuid() if user is None else user
        self._shell = subprocess.Popen(
            ["unshare", "--user", "--map-root-user", "--mount", "sh"],  # noqa: S607 - a system program
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            cwd="/",
            user=user,
            group=user,
            extra_groups=None if user is None else [],
        )
        try:
            self.run("mount -t tmpfs tmpfs /tmp && umount /tmp")
        except ServiceError as error:
            self.close()
            raise NoNamespaceError(str(error)) from error

    def run(self, command: str) -> None:
        """Run a shell command in the namespace.

        Raises:
            ServiceError: the command failed. The message is its output.
        """
        assert self._shell.stdin
        assert self._shell.stdout
        with contextlib.suppress(BrokenPipeError):  # the shell has ended, and its output says why
            self._shell.stdin.write(f"( {command} ) 2>&1 </dev/null; echo :$?\n")
            self._shell.stdin.flush()
        said = ""
        for line in self._shell.stdout:
            if line == ":0\n":
                return
            if line.startswith(":"):
                break
            said += line
        raise ServiceError(f"{command}: {said.strip()}")

    def inside(self, command: list[str]) -> list[str]:
        """Wrap a command so that it runs in the namespace, as the user, because PostgreSQL refuses to run as root."""
        enter = ["nsenter", "--user", "--mount", "--preserve-credentials", f"--target={self._shell.pid}"]
        return [*enter, "unshare", "--user", f"--map-user={self._user}", *command]

    def close(self) -> None:
        """End the shell. The namespace ends with its last process."""
        with contextlib.suppress(BrokenPipeError):
            self._shell.communicate()


class SmallDisk:
    """A small file system in memory.

    Attributes:
        directory: an empty directory on it.
    """

    def __init__(self, namespace: Namespace, mount_point: Path, *, size_mb: int) -> None:
        self._namespace = namespace
        self._filler = mount_point / "filler"
        self.directory = mount_point / "files"
        mount = f"mount -t tmpfs -o size={size_mb}m,mode=0700 tmpfs {mount_point}"
        namespace.run(f"mkdir {mount_point} && {mount} && mkdir -m 0700 {self.directory}")

    def fill(self) -> None:
        """Leave no room on the disk."""
        self._namespace.run(f"! cat /dev/zero > {self._filler} 2>/dev/null")

    def clear(self) -> None:
        """Remove what filled it."""
        self._namespace.run(f"rm -f {self._filler}")


class PostgresOnSmallDisks(LocalPostgres):
    """See the module.

    Attributes:
        tables: the disk of the tablespace `small`.
        wal: the disk of the write-ahead log.
    """

    tables: SmallDisk
    wal: SmallDisk

    _namespace: Namespace | None = None

    def start(self) -> None:
        """See `LocalServer`. The first start creates the disks. Raises NoNamespaceError."""
        if self._namespace is None:
            self._namespace = Namespace(self._user)
        super().start()

    def create_tablespace(self) -> None:
        """Create the tablespace `small` on the disk of the tables."""
        self.execute(f"CREATE TABLESPACE small LOCATION '{self.tables.directory}'")

    def fill_wal(self) -> None:
        """Fill the log's disk. The next COMMIT needs a new segment, for which there is no room."""
        self.wal.fill()
        self.execute("SELECT pg_switch_wal()")

    def panic(self) -> None:
        """Fill the log's disk. Return when the server has shut down for lack of space."""
        self.fill_wal()
        with contextlib.suppress(psycopg.OperationalError):
            self.execute("CREATE TABLE one_too_many ()")
        self._end_panicked()

    def make_room(self) -> None:
        """Free the log's disk, and start the server again."""
        self._end_panicked()
        self.wal.clear()
        super().start()

    def _end_panicked(self) -> None:
        # A server without disk space fails to recover, and shuts down. But sometimes PostgreSQL 18.6 keeps running and
        # accepts no connections, even once there is space: its postmaster seems to miss the end of the recovery
        # process.
        self.kill()

    def close(self) -> None:
        """See `LocalServer`."""
        super().close()
        if self._namespace is not None:
            self._namespace.close()

    def _create(self, programs: Path, cluster: Path) -> None:
        super()._create(programs, cluster)
        assert self._namespace
        self.wal = SmallDisk(self._namespace, self.data_dir / "wal", size_mb=_WAL_MB)
        self.tables = SmallDisk(self._namespace, self.data_dir / "tables", size_mb=_TABLES_MB)
        original = cluster / "pg_wal"
        self._namespace.run(f"mv {original}/* {self.wal.directory} && rmdir {original}")
        self._namespace.run(f"ln -s {self.wal.directory} {original}")

    def _run(self, command: list[str]) -> GuardedProcess:
        assert self._namespace
        return super()._run(self._namespace.inside(command))
