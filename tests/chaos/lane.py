"""One lane: runs the trials of one query. ``python -m tests.chaos.lane '<JSON>'`` prints one line of JSON per trial.

A trial is one driver: it finishes the previous driver's work, adds batches, and meets a fault at one of the protocol's
steps. This process has no client and no thread, so that it can fork.
"""

# ruff: noqa: T201 - the parent process reads the output

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import random
import signal
import sys
from dataclasses import dataclass, field
from multiprocessing import Pipe
from typing import TYPE_CHECKING, Any, Final

from tests.chaos.processes import STRUCK, await_change, drive, fork, serve_tasks
from tests.chaos.query import Query
from twopc.errors import DecisionInDoubtError, FencedError, RefusedStartError
from twopc.log_view import fold
from twopc.sinks.kafka.handle import ProducerIdentity
from twopc.sinks.kafka.transactions import TransactionClient

if TYPE_CHECKING:
    from multiprocessing.connection import Connection

KILLED: Final = -signal.SIGKILL
_WRITERS: Final = 3
#: The number of batches that a driver processes: enough for a fault at the second pass through a point.
_BATCHES: Final = 3
#: Points at which a fault can strike on the second pass.
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
#: The errors of a driver that was stopped while its successor worked. If it was stopped before it read the decisions, its
#: checkpoint is behind them, and its start is refused.
_EXPECTED_OF_ZOMBIES: Final = tuple(kind.__name__ for kind in (FencedError, DecisionInDoubtError, RefusedStartError))
#: The ends of a process: by itself, or at its fault, which may also stop it.
_ENDS: Final = (0, STRUCK, KILLED, None)


@dataclass
class Lane:
    """Runs the trials of a query."""

    query: Query
    chance: random.Random
    batch: int = 0  #: the first batch that is not known to be done
    sleeping: list[tuple[list[int], Connection[Any, Any]]] = field(default_factory=list)  #: stopped by an earlier trial

    def trial(self, point: str, action: str) -> dict[str, Any]:
        """Run a driver with a fault, and return the outcome."""
        if point == "driver.barred":
            self._end_decided_transactions()
        passage = self.chance.choice((1, 1, 2)) if point in _EVERY_BATCH else 1
        waking, self.sleeping = self.sleeping, []
        outcome = self._run(f"{point}@{passage}={action}" if point else "", point)
        for pids, reports in waking:
            outcome["wrong"] = outcome["wrong"] or self._wake(pids, reports)
        return {"point": point, "action": action, "passage": passage, "batch": self.batch, **outcome}

    def _wake(self, pids: list[int], reports: Connection[Any, Any]) -> str:
        """Let processes continue that were stopped while their successor worked. Return what is wrong with their ends."""
        for pid in pids:
            os.kill(pid, signal.SIGCONT)
        codes = [await_change(pid).code for pid in pids]
        error = self._read(reports)
        if error and not error.startswith(_EXPECTED_OF_ZOMBIES):
            return f"a driver that was stopped for a while: {error}"
        return "" if {*codes} <= {0, STRUCK} else f"processes that were stopped for a while ended with {codes}"

    def _run(self, fault: str, point: str) -> dict[str, Any]:
        of_task = point.startswith("task.")
        writers, mine = self._fork_writers(fault if of_task else "")
        reports, reporting = Pipe(duplex=False)
        first = self.batch
        driver = fork(lambda: drive(self.query, first, _BATCHES, mine, reporting, "" if of_task else fault))
        reporting.close()
        for connection in mine:
            connection.close()
        found = await_change(driver)
        error = self._read(reports)
        if found.code is None:  # the driver is stopped, and its writers wait for it
            self.sleeping.append(([driver, *writers], reports))
            return {"hit": True, "error": error, "wrong": ""}
        ends = {pid: await_change(pid) for pid in writers}
        self.sleeping += [([pid], reports) for pid, end in ends.items() if end.code is None]
        hit = any(end.code in {None, KILLED, STRUCK} for end in (*ends.values(), found))
        expected = _EXPECTED if point else ()  # without a fault, no error is expected
        wrong = "" if not error or error.startswith(expected) else error
        if found.code not in _ENDS:
            wrong = wrong or f"the driver ended with {found.code}"
        if bad := [end.code for end in ends.values() if end.code not in _ENDS]:
            wrong = wrong or f"writers ended with {bad}"
        return {"hit": hit, "error": error, "wrong": wrong}

    def _fork_writers(self, fault: str) -> tuple[list[int], list[Connection[Any, Any]]]:
        """Fork the writers; the first one receives the fault."""
        pids: list[int] = []
        mine: list[Connection[Any, Any]] = []
        staging = self.query.staging
        for number in range(_WRITERS):
            here, there = Pipe()
            armed = fault if number == 0 else ""
            inherited = [*mine, here]

            def work(there: Any = there, armed: str = armed, inherited: list[Any] = inherited) -> bool:
                for connection in inherited:  # otherwise the tasks would not notice the driver's end
                    connection.close()
                return serve_tasks(there, self.query.sink, staging, armed)

            pids.append(fork(work))
            there.close()
            mine.append(here)
        return pids, mine

    def _read(self, reports: Connection[Any, Any]) -> str:
        error = ""
        while not reports.closed and reports.poll():
            try:
                what, of = reports.recv()
            except EOFError:
                reports.close()
                break
            if what == "done":
                self.batch = max(self.batch, of + 1)
            else:
                error = of
        return error

    def _end_decided_transactions(self) -> None:
        """Kill a driver right after its decision, then end its transactions from outside, so that their commit is unclear."""
        self._run("driver.decided=kill", "driver.decided")
        assert await_change(fork(self._end_some)).code == 0

    def _end_some(self) -> bool:
        sink = self.query.sink
        with contextlib.closing(sink.create_decision_log()) as ledger:
            decision = fold(ledger.inspect()).decision
        assert decision is not None
        handles = [sink.decode_handle(task.handles[sink.name]) for task in decision.tasks if task.handles]
        spared = self.chance.choice((0, 0, 1)) if len(handles) > 1 else 0  # all of them are lost, or all but one
        with contextlib.closing(TransactionClient(sink.committing_config())) as client:
            for transactional_id in (handle.transactional_id for handle in handles[spared:]):
                while client.fence([ProducerIdentity(transactional_id)])[transactional_id] != "NONE":
                    pass
        return False


def main() -> int:
    given = json.loads(sys.argv[1])
    lane = Lane(Query(**given["query"]), random.Random(given["seed"]))
    for point, action in given["trials"]:
        print(json.dumps(lane.trial(point, action)), flush=True)
    print(json.dumps(lane.trial("", "")), flush=True)
    # The second extra trial cleans up after processes that were stopped or lost a race, and must itself leave nothing
    # behind.
    lane.query = dataclasses.replace(lane.query, speculates=False)
    print(json.dumps(lane.trial("", "")), flush=True)
    print(json.dumps({"batches": lane.batch}), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
