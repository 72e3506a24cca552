"""Measure a query's processes: their peak memory, as reported by the kernel, and their connections to the broker."""

from __future__ import annotations

import os
import uuid
from pathlib import Path
from typing import TYPE_CHECKING, Final

import psutil

if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import Any

_RESET_PEAK: Final = "5"  # proc(5), /proc/PID/clear_refs
_DAEMON: Final = "pyspark.daemon"
_RUN: Final = "TWOPC_BENCH_RUN"


def reset_peak() -> None:
    """Reset this process's peak memory, so that earlier work does not count."""
    try:
        Path("/proc/self/clear_refs").write_text(_RESET_PEAK)
    except OSError:
        return  # this system has no such file


def peak_mib(pid: int | None = None) -> float | None:
    """Return a process's peak resident size in MiB, by default this process's; None if the system does not report it."""
    try:
        lines = Path(f"/proc/{pid or os.getpid()}/status").read_text().splitlines()
    except OSError:
        return None
    return next((int(line.split()[1]) / 1024 for line in lines if line.startswith("VmHWM:")), None)


class Held:
    """One query's resources. The query has its own Python workers, because Spark shares no worker between two environments.

    Args:
        context: the Spark context.
        bootstrap_servers: the only broker's address; None: no connections are counted.
    """

    def __init__(self, context: Any, bootstrap_servers: str | None = None) -> None:
        self._run = uuid.uuid4().hex
        self._port = int(bootstrap_servers.rpartition(":")[2]) if bootstrap_servers else None
        context.environment[_RUN] = self._run
        reset_peak()
        self._before = self._connections()

    def facts(self) -> dict[str, float]:
        """Measure the resources while the query's connections are open."""
        found = {"connections opened": float(len(self._connections() - self._before))} if self._port else {}
        driver = peak_mib()
        if driver is not None:
            found["peak memory of the driver's Python, MiB"] = driver
        peaks = [peak for process in self._workers() if (peak := peak_mib(process.pid)) is not None]
        if peaks:
            found["peak memory of a Python worker, MiB"] = max(peaks)
        return found

    def _connections(self) -> set[tuple[int, int]]:
        """Return the connections of this process, its JVM and this query's workers, by process and local port.

        Earlier queries' workers do not count. The result is a set, because their connections may close in the meantime.
        """
        mine = [psutil.Process(), *(one for one in psutil.Process().children(recursive=True) if not _is_worker(one))]
        return {(process.pid, port) for process in (*mine, *self._workers()) for port in self._of(process)}

    def _of(self, process: psutil.Process) -> list[int]:
        try:
            found = process.net_connections(kind="tcp")
        except psutil.Error:
            return []
        to_broker = [one for one in found if one.raddr and one.raddr.port == self._port]
        return [one.laddr.port for one in to_broker if one.status == "ESTABLISHED"]

    def _workers(self) -> Iterator[psutil.Process]:
        for process in psutil.Process().children(recursive=True):
            try:
                if _is_worker(process) and process.environ().get(_RUN) == self._run:
                    yield process
            except psutil.Error:
                continue


def _is_worker(process: psutil.Process) -> bool:
    try:
        return _DAEMON in process.cmdline()
    except psutil.Error:
        return False
