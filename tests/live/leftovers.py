"""The resources of a process, kind by kind: the product's threads, librdkafka's clients, and open files.

librdkafka starts and ends a client's broker threads on its own, whenever it learns about a broker. A client that an
earlier test has left behind in this process may therefore start another such thread at any moment. So these threads and
their pipes do not count: the main thread shows that a client was left behind.
"""

from __future__ import annotations

import collections
import gc
import os
import re
import threading
from pathlib import Path

import psutil

from twopc.testing.crash_points import DAEMON_MODULE

#: The number of file descriptors of the pipe by which librdkafka wakes up a broker thread (src/rdkafka_broker.c).
_PIPE_OF_A_BROKER_THREAD = 2
#: PySpark's own leftovers: py4j's threads for calls from the JVM, and connections to the JVM. Each query leaves one
#: thread and one connection behind.
THREAD_OF_SPARK = "a thread of py4j"
SOCKET_OF_SPARK = "a socket, not to the broker"


def clients(pid: int | None = None) -> int:
    """How many librdkafka clients a process has: each has one main thread."""
    return list(_native_threads(pid or os.getpid()).values()).count("rdk:main")


def held(broker: int) -> collections.Counter[str]:
    """The resources of this process.

    Args:
        broker: its port.
    """
    gc.collect()
    threads = threading.enumerate()
    names = [_unnumbered(thread.name) for thread in threads]
    found = collections.Counter(THREAD_OF_SPARK if name == "Thread (run)" else name for name in names)
    # Compare thread ids, not counts: Python keeps listing a client's thread that has ended until another thread reuses
    # that thread's address.
    known = {thread.native_id for thread in threads}
    for thread_id, name in _native_threads(os.getpid()).items():
        if name == "rdk:broker":
            found["pipe"] -= _PIPE_OF_A_BROKER_THREAD
        elif name.startswith("rdk:"):
            found[name] += 1
        elif thread_id not in known:
            found["a thread that Python does not know"] += 1
    found.update(_files())
    to_broker = sum(bool(one.raddr) and one.raddr.port == broker for one in psutil.Process().net_connections("tcp"))
    found["a connection to the broker"] = to_broker
    found[SOCKET_OF_SPARK] -= to_broker
    return found


def _unnumbered(name: str) -> str:
    return re.sub(r"[-_][0-9]+", "", name)


def _native_threads(pid: int) -> dict[int, str]:
    """The names of a process's threads, by their ids."""
    found: dict[int, str] = {}
    for task in Path(f"/proc/{pid}/task").glob("*/comm"):
        try:
            name = task.read_text().strip()
        except OSError:  # the process has ended in the meantime
            continue
        found[int(task.parent.name)] = "rdk:broker" if name.startswith("rdk:broker") else name
    return found


def _files() -> collections.Counter[str]:
    found: collections.Counter[str] = collections.Counter()
    for descriptor in Path("/proc/self/fd").iterdir():
        try:
            target = str(descriptor.readlink())
        except OSError:
            continue
        kind = target.partition(":")[0]
        found["a file" if target.startswith("/") else SOCKET_OF_SPARK if kind == "socket" else kind] += 1
    return found


def workers_of(parent: psutil.Process, variable: str = "") -> list[int]:
    """Python workers under a process, with a variable in their environment; they stay for the next task.

    This omits the programs that Spark starts for its own files, which may end at any moment.
    """
    found = []
    for process in parent.children(recursive=True):
        try:
            if DAEMON_MODULE in process.cmdline() and (not variable or variable in process.environ()):
                found.append(process.pid)
        except psutil.Error:
            continue
    return found
