"""Record the events of a program, and let it "die" at a crash point.

In a process that is killed, no part of the program runs on. Where a test raises an error instead, the program could catch it
and continue. So after an injected fault every call of the program fails, and so does its function, even if it catches the error.
"""

from __future__ import annotations

import json
import threading
import traceback
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Any, Final

from twopc.errors import TwoPhaseCommitError
from twopc.testing.crash_points import InjectedFault, InjectedLoss

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from pyspark.sql import DataFrame

NAMED: Final = "named"
RAW: Final = "raw"
KILLED: Final = "killed"
_PROGRAM: Final = "<program "


@dataclass(frozen=True)
class Event:
    """Something that happened.

    Attributes:
        what: ``entered`` or ``completed``: the program's function, by Spark. Or where an error came from:
            ``made`` (the making of an object), ``called`` (a call of one), ``function`` (the program's), ``query`` (Spark).
        query: the query's number in the program.
        batch: Spark's own number.
        kind: of an error: ``named`` is one of the project's own, ``killed`` an injected one.
        error: the error's class.
        text: its message.
    """

    what: str
    query: int = 0
    batch: int = -1
    kind: str = ""
    error: str = ""
    text: str = ""


def program_name(seed: int) -> str:
    """The name of a program's text in tracebacks."""
    return f"{_PROGRAM}{seed}>"


def kind_of(error: BaseException) -> str:
    seen: set[int] = set()
    cause: BaseException | None = error
    while cause is not None and id(cause) not in seen:  # an error may be its own cause
        if isinstance(cause, (InjectedFault, InjectedLoss)):
            return KILLED
        seen.add(id(cause))
        cause = cause.__cause__
    return NAMED if isinstance(error, TwoPhaseCommitError) else RAW


def _is_own(error: BaseException) -> bool:
    """Whether the program's text itself raised it, and nothing that the text called."""
    frames = traceback.extract_tb(error.__traceback__)
    return bool(frames) and frames[-1].filename.startswith(_PROGRAM)


class Recorder:
    """The events of one program over all its runs. With ``log``, in a file that survives the process."""

    def __init__(self, log: Path | None = None) -> None:
        self.events: list[Event] = []
        self.made: list[Any] = []
        self.is_dead = False
        self._log = log
        self._lock = threading.Lock()
        self._at: dict[int, tuple[int, int]] = {}  # by thread; the program's own threads use the latest one
        self._latest = (0, -1)
        self._failed: dict[tuple[int, int], Event] = {}  # the last failed call of each batch
        self._last_error: BaseException | None = None  # the same error passes through several of our functions

    def note(self, event: Event) -> None:
        with self._lock:
            self.events.append(event)
            if self._log is not None:
                with self._log.open("a") as file:
                    file.write(json.dumps(asdict(event)) + "\n")

    def failed(self, what: str, error: BaseException) -> None:
        if error is self._last_error:
            return
        self._last_error = error
        if what == "function" and self.is_dead:
            return  # the death is recorded, and no one sees what the function raises afterwards
        query, batch = self.at()
        event = Event(what, query, batch, kind_of(error), type(error).__name__, str(error))
        if what == "called":
            self._failed[query, batch] = event
        elif what == "function" and _is_own(error) and (query, batch) in self._failed:
            event = replace(self._failed[query, batch], what=what)  # for an error such as "gave up", which has no cause
        self.is_dead = self.is_dead or event.kind == KILLED
        self.note(event)

    def at(self) -> tuple[int, int]:
        """The query and batch that this thread is in."""
        return self._at.get(threading.get_ident(), self._latest)

    def function(self, query: int, function: Callable[[DataFrame, int], Any]) -> Callable[[DataFrame, int], None]:
        """The program's function, watched."""

        def watched(batch: DataFrame, batch_id: int) -> None:
            self._at[threading.get_ident()] = self._latest = (query, batch_id)
            self._failed.pop((query, batch_id), None)
            self.note(Event("entered", query, batch_id))
            try:
                function(batch, batch_id)
            except Exception as error:
                self.failed("function", error)
                raise
            finally:
                if self.is_dead:
                    raise InjectedFault("the program has died")
            self.note(Event("completed", query, batch_id))

        return watched

    def maker(self, make: Callable[..., Any]) -> Callable[..., Any]:
        """``exactly_once``, watched."""

        def exactly_once(*arguments: Any, **settings: Any) -> Watched:
            try:
                each = make(*arguments, **settings)
            except Exception as error:
                self.failed("made", error)
                raise
            self.made.append(each)
            return Watched(self, each)

        return exactly_once


class Watched:
    """The object that ``exactly_once`` returns, watched."""

    def __init__(self, recorder: Recorder, each: Any) -> None:
        self._recorder = recorder
        self._each = each

    def __call__(self, *arguments: Any, **named: Any) -> None:
        if self._recorder.is_dead:
            raise InjectedFault("the program has died")
        try:
            self._each(*arguments, **named)
        except Exception as error:
            self._recorder.failed("called", error)
            raise

    def __getattr__(self, name: str) -> Any:
        return getattr(self._each, name)


def events_of(log: Path) -> list[Event]:
    return [Event(**json.loads(line)) for line in log.read_text().splitlines()] if log.exists() else []
