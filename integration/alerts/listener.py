"""Send alerts from the driver: ``exactly_once(…, listeners=[Alerts.from_file("alerts.properties", …)])``."""

from __future__ import annotations

import atexit
import logging
import queue
import threading
import time
from functools import cache, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from twopc.errors import ConfigurationError
from twopc.integration.alerts.channels import Post, to_log
from twopc.integration.alerts.episodes import Episodes
from twopc.integration.alerts.file import read_rules, require_names
from twopc.integration.alerts.saved import load, save
from twopc.integration.history.reader import HistoryError, read
from twopc.integration.local_paths import local_path
from twopc.listeners import Listener

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from twopc.events import Triggered
    from twopc.integration.alerts.channels import Channel
    from twopc.integration.alerts.rules import Rule
    from twopc.progress import Checkpoint

logger: Final = logging.getLogger("twopc.alerts")

#: The time between checks of the rules that depend on time.
_TICK_S: Final = 5.0
#: How long the process waits for the delivery of pending alerts before it exits.
_LAST_S: Final = 10.0
_WAITING: Final = 1_000
#: The ``Alerts`` objects whose threads are running.
_watching: Final[set[Alerts]] = set()


class Alerts(Listener):
    """Sends an alert when a rule fires. The query's thread only queues events, and never waits.

    Args:
        rules: the rules. Each rule needs a different name.
        to: the channels. Each channel is called with an :class:`Alert`, in its own thread.
        name: the query name in alerts. If it is empty, alerts contain the query id.
        checkpoint_location: the query's checkpoint, a local directory. If it is set, failures in earlier processes also
            count. After a restart, no episode is reported again, because the file ``twopc/alerts.json`` in the
            checkpoint lists the reported episodes.
        clock: returns the time, as a Unix timestamp in seconds.

    Raises:
        ConfigurationError: two rules have the same name, or the checkpoint is not local.
    """

    def __init__(
        self,
        rules: Sequence[Rule],
        to: Sequence[Channel] = (to_log,),
        *,
        name: str = "",
        checkpoint_location: str | Path | None = None,
        clock: Callable[[], float] = time.time,
    ) -> None:
        require_names(rules)
        self._rules, self._name, self._clock = tuple(rules), name, clock
        self._channels = tuple(to)
        self._posts = [Post(channel, self._look_again) for channel in to]
        self._checkpoint = None if checkpoint_location is None else _local(str(checkpoint_location))
        self._saved = None if self._checkpoint is None else self._checkpoint / "twopc" / "alerts.json"
        self._happened: queue.Queue[Callable[[Episodes], None]] = queue.Queue(_WAITING)
        self._episodes: Episodes | None = None
        self._thread: threading.Thread | None = None
        self._starting = threading.Lock()  # held while the thread is being started or is about to end
        self._began_ms = 0
        self._run = ("", "")
        self._is_paused = False

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle only the arguments. Under Spark Connect, a copy watches the query from the driver's process."""
        place = self._checkpoint
        made = partial(
            type(self), self._rules, self._channels, name=self._name, checkpoint_location=place, clock=self._clock
        )
        return made, ()

    @classmethod
    def from_file(
        cls,
        path: str | Path,
        to: Sequence[Channel] = (),
        *,
        name: str = "",
        checkpoint_location: str | Path | None = None,
    ) -> Alerts:
        """Take the rules and channels from a file; ``to`` adds more channels.

        Raises:
            ConfigurationError: the file cannot be read, or a key in it is wrong.
        """
        found = read_rules(Path(path))
        return cls(found.rules, [*found.channels, *to], name=name, checkpoint_location=checkpoint_location)

    def triggered(self, checkpoint: Triggered) -> None:
        """See :class:`twopc.Listener`."""
        if self._run != (checkpoint.query_id, checkpoint.run_id):
            self._run = (checkpoint.query_id, checkpoint.run_id)
            for other in list(_watching):
                other._make_way(*self._run)  # noqa: SLF001 - a private method of the same class
        now_ms = int(self._clock() * 1000)
        self._began_ms = self._began_ms or now_ms
        with self._starting:
            self._tell(lambda episodes: self._begins(episodes, now_ms))
            if self._thread is None:
                thread = threading.Thread(target=self._watch, name="twopc-alerts", daemon=True)
                thread.start()
                self._thread = thread
                _watching.add(self)
                _flush_at_exit()

    def ended(self, checkpoint: Checkpoint) -> None:
        """See :class:`twopc.Listener`."""
        self._tell(lambda episodes: self._ends(episodes, checkpoint))

    def close(self) -> None:
        """See :class:`twopc.Listener`. Stop watching the query unless it has failed."""
        self._tell_thread(self._closes)

    def _make_way(self, query_id: str, run_id: str) -> None:
        """Pause when a later run of this query begins. Another object watches that run."""
        if self._run[0] == query_id and self._run[1] != run_id:
            self._tell_thread(lambda _: self._pauses())

    def _look_again(self) -> None:
        self._tell_thread(lambda _: None)

    def _tell_thread(self, what: Callable[[Episodes], None]) -> None:
        with self._starting:
            if self._thread is not None:
                self._tell(what)

    def _tell(self, what: Callable[[Episodes], None]) -> None:
        try:
            self._happened.put_nowait(what)
        except queue.Full:
            logger.warning(
                "alerts: the watching thread is %d events behind, so it dropped an event. The rules may miss a "
                "checkpoint",
                _WAITING,
            )

    # -- in the watching thread ----------------------------------------------------------------------------------------

    def _watch(self) -> None:
        if self._episodes is None:
            self._episodes = Episodes(self._rules, self._name, self._began_ms, load(self._saved))
            self._learn(self._episodes)
        episodes = self._episodes
        while not self._ends_here():
            try:
                happened = self._happened.get(timeout=_TICK_S)
            except queue.Empty:
                self._guarded(episodes, self._checks)
            else:
                self._guarded(episodes, happened)
                self._guarded(episodes, self._checks)
                self._happened.task_done()

    def _ends_here(self) -> bool:
        """Whether the watch is paused and every alert has been delivered or dropped. If so, another thread may start."""
        if not self._is_paused or any(post.is_busy for post in self._posts):
            return False
        with self._starting:
            if not self._happened.empty():
                return False
            self._thread = None
            _watching.discard(self)
            return True

    def _guarded(self, episodes: Episodes, act: Callable[[Episodes], None]) -> None:
        try:
            act(episodes)
        except Exception:
            logger.exception("alerts: an unexpected error occurred. The thread keeps watching the query")

    def _learn(self, episodes: Episodes) -> None:
        """Process the checkpoints that earlier processes recorded."""
        if self._checkpoint is None:
            return
        try:
            history = read(self._checkpoint)
        except HistoryError:
            return  # this is the query's first start
        episodes.learn(one for one in history.checkpoints if one.triggered_ms < self._began_ms)
        if history.in_progress is not None:
            episodes.planned_ms = history.in_progress.since_ms  # an earlier process may have attempted this checkpoint

    def _begins(self, episodes: Episodes, now_ms: int) -> None:
        if self._is_paused:
            episodes.begins_again(now_ms)
            self._is_paused = False
        if episodes.planned_ms is None:
            episodes.planned_ms = now_ms

    def _ends(self, episodes: Episodes, checkpoint: Checkpoint) -> None:
        if checkpoint.cause is None:  # after a failure, the checkpoint still counts as planned
            episodes.planned_ms = None
        self._send(episodes, checkpoint)

    def _closes(self, episodes: Episodes) -> None:
        self._is_paused = self._is_paused or episodes.planned_ms is None

    def _pauses(self) -> None:
        self._is_paused = True

    def _checks(self, episodes: Episodes) -> None:
        if not self._is_paused:
            self._send(episodes)

    def _send(self, episodes: Episodes, checkpoint: Checkpoint | None = None) -> None:
        found = episodes.check(int(self._clock() * 1000)) if checkpoint is None else episodes.ended(checkpoint)
        for alert in found:
            for post in self._posts:
                post.put(alert)
        if found:
            save(self._saved, episodes.state)

    def _flush(self, until: float) -> None:
        with self._happened.all_tasks_done:
            left_s = max(0.0, until - time.monotonic())
            self._happened.all_tasks_done.wait_for(lambda: not self._happened.unfinished_tasks, left_s)
        for post in self._posts:
            post.flush(max(0.0, until - time.monotonic()))


@cache
def _flush_at_exit() -> None:
    """Deliver the alerts before this process exits, because a failure that stops the process must still be reported."""
    atexit.register(_flush_all)


def _flush_all() -> None:
    until = time.monotonic() + _LAST_S
    for alerts in list(_watching):
        alerts._flush(until)  # noqa: SLF001 - a private method of a class in this module


def _local(location: str) -> Path:
    try:
        return local_path(location)
    except ConfigurationError:
        raise ConfigurationError(
            f"Alerts(checkpoint_location={location!r}): the location is not a local directory. Omit "
            "checkpoint_location. The rules then count only the failures in this process"
        ) from None
