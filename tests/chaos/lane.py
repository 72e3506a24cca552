"""One lane: trial after trial over one query. ``python -m tests.chaos.lane '<JSON>'``; a line of JSON for each trial.

A trial is one driver: it finishes what the one before left, goes on, and has a fault at one of the protocol's steps. This
process has no client and no thread, so that it can fork.
"""

# ruff: noqa: T201 - read by whoever started it

from __future__ import annotations

import dataclasses
import json
import os
import random
import signal
import sys
from dataclasses import dataclass, field
from multiprocessing import Pipe
from typing import TYPE_CHECKING, Any, Final

from sinks.kafka.transactions import TransactionClient, current_producer
from tests.chaos.processes import STRUCK, await_change, drive, fork, serve_tasks
from tests.chaos.query import Query
from twopc.errors import FencedError

if TYPE_CHECKING:
    from multiprocessing.connection import Connection

KILLED: Final = -signal.SIGKILL
_WRITERS: Final = 3
#: How many batches a driver adds to what it found: enough for a fault at the second passage of a point.
_BATCHES: Final = 3
#: A fault can strike at the second passage of these.
_EVERY_BATCH: Final = frozenset(
    {
        "driver.prepared",
        "driver.confirmed",
        "driver.deciding",
        "driver.decided",
        "driver.committing",
        "driver.committed",
        "driver.swept",
    }
)
_EXPECTED: Final = ("InjectedFault", "InjectedLoss", FencedError.__name__)


@dataclass
class Lane:
    """See the module."""

    query: Query
    chance: random.Random
    batch: int = 0  #: the first that is not known to be done
    sleeping: list[tuple[list[int], Connection[Any, Any]]] = field(default_factory=list)  #: since an earlier trial

    def trial(self, point: str, action: str) -> dict[str, Any]:
        """Run a driver with a fault; returns its outcome."""
        if point == "driver.barred":
            self._end_what_is_decided()
        passage = self.chance.choice((1, 1, 2)) if point in _EVERY_BATCH else 1
        waking, self.sleeping = self.sleeping, []
        outcome = self._run(f"{point}@{passage}={action}" if point else "", point)
        for pids, told in waking:  # they slept while their successor worked, and now resume
            for pid in pids:
                os.kill(pid, signal.SIGCONT)
            for pid in pids:
                await_change(pid)
            self._read(told)
        return {"point": point, "action": action, "passage": passage, "batch": self.batch, **outcome}

    def _run(self, fault: str, point: str) -> dict[str, Any]:
        of_task = point.startswith("task.")
        writers, mine = self._fork_writers(fault if of_task else "")
        told, telling = Pipe(duplex=False)
        first = self.batch
        driver = fork(lambda: drive(self.query, first, _BATCHES, mine, telling, "" if of_task else fault))
        telling.close()
        for connection in mine:
            connection.close()
        found = await_change(driver)
        error = self._read(told)
        if found.code is None:  # its writers wait for it
            self.sleeping.append(([driver, *writers], told))
            return {"hit": True, "error": error, "wrong": ""}
        ends = {pid: await_change(pid) for pid in writers}
        self.sleeping += [([pid], told) for pid, end in ends.items() if end.code is None]
        hit = any(end.code in {None, KILLED, STRUCK} for end in (*ends.values(), found))
        expected = _EXPECTED if point else ()  # without a fault there is no reason for any error
        wrong = "" if not error or error.startswith(expected) else error
        if found.code not in {0, STRUCK, KILLED}:
            wrong = wrong or f"the driver ended with {found.code}"
        return {"hit": hit, "error": error, "wrong": wrong}

    def _fork_writers(self, fault: str) -> tuple[list[int], list[Connection[Any, Any]]]:
        """The first of them has the fault."""
        pids: list[int] = []
        mine: list[Connection[Any, Any]] = []
        staging = self.query.staging
        for number in range(_WRITERS):
            here, there = Pipe()
            armed = fault if number == 0 else ""
            inherited = [*mine, here]

            def work(there: Any = there, armed: str = armed, inherited: list[Any] = inherited) -> bool:
                for connection in inherited:  # else nobody would see that the driver is gone
                    connection.close()
                return serve_tasks(there, self.query.sink, staging, armed)

            pids.append(fork(work))
            there.close()
            mine.append(here)
        return pids, mine

    def _read(self, told: Connection[Any, Any]) -> str:
        error = ""
        while not told.closed and told.poll():
            try:
                what, of = told.recv()
            except EOFError:
                told.close()
                break
            if what == "done":
                self.batch = max(self.batch, of + 1)
            else:
                error = of
        return error

    def _end_what_is_decided(self) -> None:
        """A driver dies right after its decision; then somebody ends its transactions, so that their commit is unclear."""
        self._run("driver.decided=kill", "driver.decided")
        assert await_change(fork(self._end_some)).code == 0

    def _end_some(self) -> bool:
        client = TransactionClient(self.query.sink.committing_config())
        listed = client.list_open(f"{self.query.name}.").transactional_ids
        tasks = [name for name in listed if not name.endswith(".driver")]
        for transactional_id in tasks[self.chance.choice((0, 0, 1)) :]:  # all of them are lost, or some
            while client.fence([current_producer(transactional_id)])[transactional_id] != "NONE":
                pass
        return False


def main() -> int:
    given = json.loads(sys.argv[1])
    lane = Lane(Query(**given["query"]), random.Random(given["seed"]))
    for point, action in given["trials"]:
        print(json.dumps(lane.trial(point, action)), flush=True)
    print(json.dumps(lane.trial("", "")), flush=True)
    # The second one for what the sleepers and losers have left. It may leave nothing itself.
    lane.query = dataclasses.replace(lane.query, speculates=False)
    print(json.dumps(lane.trial("", "")), flush=True)
    print(json.dumps({"batches": lane.batch}), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
