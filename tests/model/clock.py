"""Replacements for the parts of the standard library that differ between runs: time, names, threads."""

from __future__ import annotations

import uuid
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    import random
    from collections.abc import Callable


class Scheduler(Protocol):
    """The part of the simulation that time and threads need."""

    chance: random.Random

    @property
    def now_ms(self) -> float: ...

    def sleep(self, seconds: float) -> None: ...

    def spawn(self, work: Callable[[], None]) -> Callable[[], bool]:
        """Run ``work`` concurrently in the caller's process; the result says whether it still runs."""

    def wait(self, until: Callable[[], bool], timeout_ms: float | None = None) -> bool: ...


class Time:
    """Replaces a module's ``time``."""

    def __init__(self, scheduler: Callable[[], Scheduler]) -> None:
        self._scheduler = scheduler

    def monotonic(self) -> float:
        return self._scheduler().now_ms / 1000

    time = monotonic

    def sleep(self, seconds: float) -> None:
        self._scheduler().sleep(seconds)


class Names:
    """Replaces a module's ``uuid``: the same seed yields the same names."""

    def __init__(self, scheduler: Callable[[], Scheduler]) -> None:
        self._scheduler = scheduler

    def uuid4(self) -> uuid.UUID:
        return uuid.UUID(int=self._scheduler().chance.getrandbits(128), version=4)


class Threads:
    """Replaces a module's ``threading``."""

    def __init__(self, scheduler: Callable[[], Scheduler]) -> None:
        outer = scheduler

        class Thread:
            def __init__(self, *, target: Callable[..., None], args: tuple[object, ...], **_: object) -> None:
                self._work = lambda: target(*args)

            def start(self) -> None:
                outer().spawn(self._work)

        class Condition:
            """Its lock does nothing: greenlets switch only at requests, and no request is made under this lock."""

            def __enter__(self) -> None: ...

            def __exit__(self, *_: object) -> None: ...

            def wait_for(self, predicate: Callable[[], object]) -> None:
                outer().wait(lambda: bool(predicate()))

            def notify_all(self) -> None: ...

        self.Thread = Thread
        self.Condition = Condition
