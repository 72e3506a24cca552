"""Processes, time and a network in one thread. One seed decides which process moves next, and what breaks.

A process is one or more greenlets. At each of its requests to the outside world, another process may move, the nemesis may
strike, or time may pass. A dead process can do nothing, not even clean up.
"""

from __future__ import annotations

import contextlib
import random
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, TypeVar

from greenlet import getcurrent, greenlet

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.model.broker import Cluster

T = TypeVar("T")

_SWITCH: Final = 0.3
_REQUEST_MS: Final = 1.0
#: Longer than every transaction timeout in the histories.
JUMP_MS: Final = 100_000.0
_MARKED_AT_ONCE: Final = 0.7
_RESUMED: Final = 0.02
_MAX_STEPS: Final = 50_000


class Crash(BaseException):
    """The death of a process. Derived from BaseException, so that no ``except Exception`` of the product swallows it."""


class LostError(Exception):
    """The network lost the request or its response; the caller cannot know which."""


class RefusedError(Exception):
    """The broker refuses a record."""


class Interrupt(BaseException):
    """An unexpected error: a bug, or a user who stops the query. The process lives on and handles it."""


class EndlessError(AssertionError):
    """The simulation does not end."""


@dataclass(eq=False)
class Process:
    """The processes that die together. ``pools`` is the product's module state; each real process has its own."""

    name: str
    alive: bool = True
    paused: bool = False
    pools: dict[Any, Any] = field(default_factory=dict)


class Strand:
    """One thread of a process."""

    def __init__(self, process: Process, work: Callable[[], None], hub: greenlet) -> None:
        self.process = process
        self.until: Callable[[], bool] | None = None
        self.wake_ms: float | None = None
        self.error: BaseException | None = None
        self.is_first = False
        self._greenlet = greenlet(self._run, hub)
        self._greenlet.strand = self  # type: ignore[attr-defined]
        self._work = work

    def _run(self) -> None:
        try:
            self._work()
        except BaseException as error:  # noqa: BLE001 - the launcher judges it
            self.error = error

    @property
    def ended(self) -> bool:
        return self._greenlet.dead

    def is_ready(self, now_ms: float) -> bool:
        if self.process.paused or self.ended:
            return False
        if self.until is not None and self.until():
            return True
        return self.wake_ms <= now_ms if self.wake_ms is not None else self.until is None

    def move(self) -> None:
        self.until = self.wake_ms = None
        self._greenlet.switch()

    def die(self) -> None:
        """Unwind it; every request on the way raises."""
        if not self.ended:
            self._greenlet.throw(Crash)


class Simulation:
    """See the module. ``strike`` is the nemesis: called at each request, it may kill, pause, lose it, or let time pass."""

    def __init__(self, seed: int, cluster: Cluster) -> None:
        self.chance = random.Random(seed)
        self.cluster = cluster
        self.strike: Callable[[str, Callable[[], Any]], None] = lambda _kind, _act: None
        self.on_move: Callable[[Process], None] = lambda _: None
        self.processes: list[Process] = []
        self.trace: list[str] = []
        self._strands: list[Strand] = []
        self._hub = getcurrent()
        self._steps = 0

    # -- for processes -------------------------------------------------------------------------------------------------

    @property
    def now_ms(self) -> float:
        return self.cluster.now_ms

    @property
    def process(self) -> Process:
        return self._strand.process

    @property
    def is_driver(self) -> bool:
        """Whether a driver's own thread is running."""
        return self._strand.is_first and "/" not in self.process.name

    def request(self, kind: str, act: Callable[[], T]) -> T:
        """Make one request to the outside world. This is the step at which anything may happen."""
        self._require_alive()
        self.strike(kind, act)
        self._require_alive()
        if self.chance.random() < _SWITCH:
            self._yield()
        self.pass_time(_REQUEST_MS)
        found = act()
        self.trace.append(f"{self.process.name} {kind} {found!r}"[:200])
        return found

    def sleep(self, seconds: float) -> None:
        self._require_alive()
        self._strand.wake_ms = self.now_ms + seconds * 1000
        self._yield()

    def wait(self, until: Callable[[], bool], timeout_ms: float | None = None) -> bool:
        """Wait until the condition holds; False if the timeout comes first."""
        self._require_alive()
        if not until():
            self._strand.until = until
            self._strand.wake_ms = None if timeout_ms is None else self.now_ms + timeout_ms
            self._yield()
        return until()

    def spawn(self, work: Callable[[], None]) -> Callable[[], bool]:
        """Start another thread of the current process."""
        self._require_alive()
        strand = self.launch(self.process, work)
        return lambda: not strand.ended

    def pause(self) -> None:
        """Stop the current process for a long time."""
        self.process.paused = True
        self._yield()

    def crash(self) -> None:
        """Kill the current process here."""
        self.kill(self.process)
        raise Crash

    def _yield(self) -> None:
        self._hub.switch()
        self._require_alive()

    def _require_alive(self) -> None:
        if not self.process.alive:
            raise Crash

    @property
    def _strand(self) -> Strand:
        strand: Strand = getcurrent().strand  # type: ignore[attr-defined]
        return strand

    # -- for the history -----------------------------------------------------------------------------------------------

    def launch(self, process: Process, work: Callable[[], None]) -> Strand:
        strand = Strand(process, work, self._hub)
        if process not in self.processes:
            self.processes.append(process)
            strand.is_first = True
        self._strands.append(strand)
        return strand

    def kill(self, process: Process) -> None:
        process.alive = False

    def pass_time(self, milliseconds: float) -> None:
        """Let time pass; transactions expire and control records are written."""
        self.cluster.now_ms += milliseconds
        for expired in self.cluster.expire() if milliseconds >= _REQUEST_MS else ():
            self.trace.append(f"-- {expired} timed out")
        for known in self.cluster.unfinished():
            if self.chance.random() < _MARKED_AT_ONCE:
                self.cluster.mark(known)
            elif self.chance.random() < _MARKED_AT_ONCE:
                self.cluster.mark(known, 1)

    def step(self) -> bool:
        """Let one process move; False if none is left."""
        self._steps += 1
        if self._steps > _MAX_STEPS:
            raise EndlessError(f"the history did not end within {_MAX_STEPS} steps")
        self._unwind()
        for process in self.processes:
            if process.paused and self.chance.random() < _RESUMED:
                process.paused = False
        ready = [strand for strand in self._strands if strand.is_ready(self.now_ms)]
        if ready:
            strand = self.chance.choice(ready)
            self.on_move(strand.process)
            strand.move()
            return True
        return self._wake_somebody()

    def _wake_somebody(self) -> bool:
        sleeping = [s.wake_ms for s in self._strands if s.wake_ms is not None and not s.process.paused and not s.ended]
        if sleeping:
            self.pass_time(max(0.0, min(sleeping) - self.now_ms))
            return True
        paused = [process for process in self.processes if process.paused]
        if paused:
            self.chance.choice(paused).paused = False
            return True
        return False

    def _unwind(self) -> None:
        for strand in self._strands:
            if not strand.process.alive and not strand.ended:
                self.on_move(strand.process)
                with contextlib.suppress(Crash):
                    strand.die()
        self._strands = [strand for strand in self._strands if not strand.ended]
        self.processes = [process for process in self.processes if process.alive]

    def end(self) -> None:
        """Kill every process."""
        for process in self.processes:
            process.alive = False
            process.paused = False
        self._unwind()
