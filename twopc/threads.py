"""Run calls in threads that work until the process ends.

Python ends the executors of ``concurrent.futures`` as soon as the main thread ends, even if other threads still run a query:
every later ``submit()`` raises a RuntimeError. So the protocol, the sinks and the Spark side use this module instead. Its
threads are daemons, because they must not keep the process alive.
"""

from __future__ import annotations

import threading
from collections import deque
from contextlib import suppress
from functools import partial
from queue import SimpleQueue
from typing import TYPE_CHECKING, Generic, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterable

T = TypeVar("T")
R = TypeVar("R")


class Later(Generic[R]):
    """The outcome of a call that another thread makes."""

    def __init__(self, call: Callable[[], R]) -> None:
        self._call: Callable[[], R] | None = call
        self._is_over = threading.Event()
        self._results: list[R] = []
        self._error: BaseException | None = None

    def run(self) -> None:
        """Make the call, and keep its outcome."""
        call, self._call = self._call, None
        if call is None:
            raise AssertionError("each call is made once")
        try:
            self._results.append(call())
        except BaseException as error:  # noqa: BLE001 - raised where the result is needed
            self._error = error
        finally:
            self._is_over.set()

    def result(self) -> R:
        """Wait for the call's result.

        Raises:
            BaseException: the call's error.
        """
        self._is_over.wait()
        if self._error is not None:
            try:
                raise self._error
            finally:
                self = None  # type: ignore[assignment]  # noqa: PLW0642 - the error's traceback would refer to the error
        return self._results[0]


class Beside:
    """Makes calls one after another, in one thread beside the caller's. If the thread cannot start, the caller makes them.

    Args:
        name: the thread's name.
    """

    def __init__(self, name: str) -> None:
        self._name = name
        self._waiting: SimpleQueue[Later[object] | None] = SimpleQueue()
        self._thread: threading.Thread | None = None

    def submit(self, call: Callable[[], R]) -> Later[R]:
        """Make a call after all earlier calls."""
        later = Later(call)
        if self._thread is None:
            self._thread = _started(partial(_serve, self._waiting), self._name)
        if self._thread is None:
            later.run()
        else:
            self._waiting.put(later)  # type: ignore[arg-type]
        return later

    def close(self) -> None:
        """End the thread after the calls that are waiting. A later call starts another thread."""
        if self._thread is not None:
            self._waiting.put(None)
            self._thread = None


def at_once(step: Callable[[T], R], items: Iterable[T], *, threads: int, name: str) -> Generator[R]:
    """Run a step for several items concurrently, and yield the results in order.

    If no thread can start, the caller runs the steps. When the iterator is closed, it waits for running steps, and starts no more
    steps.

    Args:
        step: the step.
        items: the arguments of the step.
        threads: the maximum number of threads.
        name: the threads' name.

    Raises:
        BaseException: the error of a step. No later result is returned.
    """
    calls = [Later(partial(step, item)) for item in items]
    todo = deque(calls)

    def work() -> None:
        with suppress(IndexError):
            while True:
                todo.popleft().run()

    wanted = min(threads, len(calls))
    running = [one for _ in range(wanted) if (one := _started(work, name)) is not None]
    try:
        for call in calls:
            if not running:
                call.run()
            yield call.result()
    finally:
        todo.clear()
        for thread in running:
            thread.join()


def _serve(waiting: SimpleQueue[Later[object] | None]) -> None:
    while (later := waiting.get()) is not None:
        later.run()
        del later  # the result may be large


def _started(work: Callable[[], None], name: str) -> threading.Thread | None:
    thread = threading.Thread(target=work, name=name, daemon=True)
    try:
        thread.start()
    except RuntimeError:  # the process has reached its limit of threads, or is ending
        return None
    return thread
