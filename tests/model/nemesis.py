"""The faults, and when they strike: a budget of faults that strike at requests, drawn from the history's seed."""

from __future__ import annotations

from collections import Counter
from enum import Enum
from typing import TYPE_CHECKING, Any, Final

from tests.model.network import NETWORK
from tests.model.simulation import JUMP_MS, Interrupt, LostError, RefusedError

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.model.simulation import Simulation

_LOST_AFTER_MS: Final = 500.0
_STALL_MS: Final = 2_000.0
_STALE: Final = 0.3
#: The probability that an interrupted act has taken effect.
_DONE: Final = 0.5


class Fault(Enum):
    """The kinds of faults."""

    CRASH = "the process dies before its request"
    CRASH_AFTER = "the process dies after its request, before the answer"
    CRASH_APPLICATION = "the driver and all its workers die"
    PAUSE = "the process pauses for a long time"
    PAUSE_AND_TIMEOUT = "the same, and every open transaction times out in the meantime"
    TIMEOUT = "time jumps beyond the transactions' timeout"
    STALL = "a request takes two seconds"
    LOSE_REQUEST = "the request is lost (an EndTxn may come through much later)"
    LOSE_ANSWER = "the answer is lost"
    REPLAY = "an EndTxn that was sent before arrives again"
    REPLAY_INIT = "an InitProducerId that was sent before arrives again"
    OUTSIDER = "an outsider aborts an open transaction by EndTxn, at its own epoch"
    STALE_READS = "reads are answered by a leader that was cut off"
    REFUSE_RECORD = "the broker refuses a record"
    INTERRUPT = "a driver's request, or what follows it, raises an unexpected error"
    RIVAL = "a second driver starts on the same checkpoint"
    COPIED_CHECKPOINT = "a query starts on a copy of the checkpoint with another history"
    REPLACED = "a new query with a new checkpoint ends the query and takes its place"
    ABANDON = "the user gives a batch up, as an error says"
    RESUME = "the user lets the query continue behind batches that the function left out"


#: Faults that strike at a request, with their weights.
_WEIGHTS: Final = {
    Fault.CRASH: 6,
    Fault.CRASH_AFTER: 6,
    Fault.CRASH_APPLICATION: 3,
    Fault.PAUSE: 4,
    Fault.PAUSE_AND_TIMEOUT: 2,
    Fault.TIMEOUT: 2,
    Fault.STALL: 2,
    Fault.LOSE_REQUEST: 4,
    Fault.LOSE_ANSWER: 4,
    Fault.REPLAY: 5,
    Fault.REPLAY_INIT: 2,
    Fault.OUTSIDER: 2,
    Fault.STALE_READS: 3,
    Fault.REFUSE_RECORD: 6,  # it strikes at one kind of request only
    Fault.INTERRUPT: 6,
}
#: Faults that may abort a decided transaction.
_ABORTING: Final = (Fault.TIMEOUT, Fault.PAUSE_AND_TIMEOUT, Fault.REPLAY_INIT, Fault.OUTSIDER)
#: The kinds of requests that a fault can strike; all by default.
_AT: Final = {
    Fault.LOSE_REQUEST: NETWORK.losable,
    Fault.LOSE_ANSWER: NETWORK.losable,
    Fault.REFUSE_RECORD: {"produce"},
}


class Nemesis:
    """Strikes at each request with probability ``rate`` until its budget is spent."""

    def __init__(self, simulation: Simulation, *, budget: int, rate: float) -> None:
        self._simulation = simulation
        self._rate = rate
        self.budget = budget
        self.struck: Counter[Fault] = Counter()
        #: Each fault receives the request, and may or may not send it.
        self._strikes: dict[Fault, Callable[[Callable[[], Any]], None]] = {
            Fault.CRASH: lambda _: simulation.crash(),
            Fault.CRASH_AFTER: self._crash_after,
            Fault.CRASH_APPLICATION: self._crash_application,
            Fault.PAUSE: lambda _: simulation.pause(),
            Fault.PAUSE_AND_TIMEOUT: self._pause_and_time_out,
            Fault.TIMEOUT: lambda _: simulation.pass_time(JUMP_MS),
            Fault.STALL: lambda _: simulation.pass_time(_STALL_MS),
            Fault.LOSE_REQUEST: self._lose_request,
            Fault.LOSE_ANSWER: self._lose_answer,
            Fault.REPLAY: self._replay,
            Fault.REPLAY_INIT: self._replay_init,
            Fault.OUTSIDER: self._abort_one,
            Fault.STALE_READS: self._cut_off_a_leader,
            Fault.REFUSE_RECORD: self._refuse_record,
            Fault.INTERRUPT: self._interrupt,
        }

    @property
    def may_have_lost_transactions(self) -> bool:
        """Whether the faults so far can have lost a decided transaction."""
        return any(self.struck[fault] for fault in _ABORTING)

    def count(self, fault: Fault) -> None:
        """Count a fault that does not strike at a request."""
        self.budget -= 1
        self.struck[fault] += 1

    def strike(self, kind: str, act: Callable[[], Any]) -> None:
        chance = self._simulation.chance
        if not self.budget or chance.random() > self._rate:
            return
        fault = chance.choices(list(_WEIGHTS), list(_WEIGHTS.values()))[0]
        if kind not in _AT.get(fault, {kind}) or (fault is Fault.INTERRUPT and not self._simulation.is_driver):
            return
        self.count(fault)
        self._simulation.trace.append(f"** {fault.name} at {self._simulation.process.name} {kind}")
        self._strikes[fault](act)

    def _crash_after(self, act: Callable[[], Any]) -> None:
        act()
        self._simulation.crash()

    def _crash_application(self, _: Callable[[], Any]) -> None:
        driver = self._simulation.process.name.partition("/")[0]
        for process in self._simulation.processes:
            if process.name.partition("/")[0] == driver:
                self._simulation.kill(process)
        self._simulation.crash()

    def _pause_and_time_out(self, _: Callable[[], Any]) -> None:
        self._simulation.pass_time(JUMP_MS)
        self._simulation.pause()

    def _lose_request(self, _: Callable[[], Any]) -> None:
        self._simulation.pass_time(_LOST_AFTER_MS)
        raise LostError

    def _lose_answer(self, act: Callable[[], Any]) -> None:
        act()
        self._lose_request(act)

    def _replay(self, _: Callable[[], Any]) -> None:
        sent = [*NETWORK.sent_ends, *NETWORK.delayed]
        if sent:
            answer = self._simulation.chance.choice(sent)()
            self._simulation.trace.append(f"-- a replayed EndTxn is answered {answer}")

    def _replay_init(self, _: Callable[[], Any]) -> None:
        if NETWORK.sent_inits:
            answer = self._simulation.chance.choice(NETWORK.sent_inits)()
            self._simulation.trace.append(f"-- a replayed InitProducerId is answered {answer}")

    def _abort_one(self, _: Callable[[], Any]) -> None:
        cluster = self._simulation.cluster
        tasks = [known for known in cluster.ongoing() if not known.transactional_id.endswith(".driver")]
        if tasks:
            known = self._simulation.chance.choice(tasks)
            cluster.end(known.transactional_id, known.producer_id, known.epoch, commit=False)
            self._simulation.trace.append(f"-- {known.transactional_id} was aborted from outside")

    def _refuse_record(self, _: Callable[[], Any]) -> None:
        raise RefusedError

    def _interrupt(self, act: Callable[[], Any]) -> None:
        if self._simulation.chance.random() < _DONE:
            act()
        raise Interrupt

    def _cut_off_a_leader(self, _: Callable[[], Any]) -> None:
        NETWORK.stale = _STALE

    def rest(self) -> None:
        """End all faults."""
        self.budget = 0
        NETWORK.stale = 0.0
