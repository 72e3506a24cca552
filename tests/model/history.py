"""One history: a query, its drivers and a nemesis. Then the faults end, a last driver finishes, and the judge rules."""

from __future__ import annotations

import copy
import random
from collections import Counter
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Final

from tests.model.broker import Cluster
from tests.model.judge import ROGUE, Judge
from tests.model.nemesis import Fault, Nemesis
from tests.model.network import NETWORK
from tests.model.patches import MARKER_PARTITIONS
from tests.model.query import (
    ANOTHER_SINK,
    LEDGERS,
    OUTPUT,
    SINK,
    Checkpointed,
    ModelViolation,
    Query,
    Shape,
    use_pools_of,
)
from tests.model.simulation import JUMP_MS, Crash, Interrupt, Process, Simulation, Strand
from tests.named_overrides import named_overrides
from twopc.errors import (
    DecisionInDoubtError,
    FencedError,
    InDoubtError,
    RefusedStartError,
    RetriableError,
    TwoPhaseCommitError,
)
from twopc.override import Abandon, Overrides, ResumeAt

if TYPE_CHECKING:
    from collections.abc import Callable

    from twopc.override import Override
    from twopc.sinks.kafka import KafkaSink

_OUTPUT_PARTITIONS: Final = 2
#: In the longest history so far, faults killed 63 drivers.
_MAX_DRIVERS: Final = 120
_GIVES_UP_AFTER: Final = 3
_SECOND_DRIVER: Final = 0.05
_RIVAL: Final = 0.004
_LONG_DOWNTIME: Final = 0.15
_ROGUE: Final = 0.01
_ORPHANS_DIE: Final = 0.5
#: The probability that a fault waits for a decision.
_AIMED: Final = 0.25
#: The probability that, from the beginning, a user passes Abandon with a batch's number.
_LEFT_IN_CODE: Final = 0.2
_LEFT_FOR_THE_NEXT: Final = 0.6
#: The probability that, at one of the query's restarts, a new query with its own checkpoint replaces it.
_REPLACED: Final = 0.25
_AT_THIS_RESTART: Final = 0.3
_WITH_A_DECISION: Final = 0.9
#: The probability that a driver of a query that will be replaced dies between a decision and its commit.
_DIES_DECIDED: Final = 0.7
#: The probability that the new query replaces two queries, each with its own sink and ledger.
_MERGED: Final = 0.4
#: The probability that the new query has another sink besides the old query's.
_HAS_ANOTHER_SINK: Final = 0.5
#: The probability that a fault waits for a decision of the new query, and the probability that the process then dies,
#: too.
_AIMED_AT_THE_NEXT: Final = 0.8
_DIES_TOO: Final = 0.5
#: Far more rows than a query reads: the new query reads none of the old one's rows.
_ROWS_APART: Final = 1_000
#: The probability that a user abandons a batch as soon as an error suggests it, even if a restart could complete the
#: batch.
_HASTY: Final = 0.3
_OBJECTS: Final = 0.3


@dataclass
class Verdict:
    """The result of a history.

    Attributes:
        seed: plays it again.
        shape: the shape of the query.
        violation: the broken promise; None if none was broken.
        in_doubt: whether a batch had to be abandoned in the end, which is allowed for a shuffled plan without staging.
        drivers: how many were started.
        struck: number of faults by kind.
        trace: every step.
    """

    seed: int
    shape: Shape
    violation: str | None = None
    in_doubt: bool = False
    drivers: int = 0
    struck: Counter[str] = field(default_factory=Counter)
    trace: list[str] = field(default_factory=list)


class History:
    """Plays the history of one seed."""

    def __init__(self, seed: int) -> None:
        chance = random.Random(f"shape {seed}")
        self.shape = Shape(
            batches=chance.randint(1, 4),
            tasks=chance.randint(1, 5),
            workers=chance.randint(1, 3),
            shuffled=chance.random() < 0.3,
            staged=chance.random() < 0.3,
            keep_batches=chance.choice((1, 2, 100)),
            skips=chance.random() < 0.2,
            objects=random.Random(f"store {seed}").random() < _OBJECTS,
            tolerable=random.Random(f"tolerable {seed}").choice((0, 0, 1, 3)),
        )
        cluster = Cluster({OUTPUT: _OUTPUT_PARTITIONS} | dict.fromkeys(LEDGERS, 1 + MARKER_PARTITIONS))
        self.simulation = Simulation(seed, cluster)
        self.judge = Judge(cluster)
        self.nemesis = Nemesis(
            self.simulation, budget=chance.choice((1, 2, 3, 4, 6, 8, 12)), rate=chance.choice((0.02, 0.06, 0.15))
        )
        self.simulation.strike = self._strike
        self.simulation.on_move = use_pools_of
        NETWORK.begin(self.simulation)
        self.query = Query(self.simulation, self.shape)
        self._aims = chance.random() < _AIMED
        self._is_replaced = random.Random(f"replaced {seed}").random() < _REPLACED
        self._is_merged = self._is_replaced and random.Random(f"merged {seed}").random() < _MERGED
        if chance.random() < (_LEFT_FOR_THE_NEXT if self._is_replaced else _LEFT_IN_CODE):
            left = chance.randrange(self.shape.batches)
            self.query.overrides = Overrides(abandoned={Abandon(left)})
            self.judge.allowed.add(Abandon(left))
        self._dies = self._is_replaced and random.Random(f"dies {seed}").random() < _DIES_DECIDED
        self._replaced: list[Checkpointed] = []
        self.started = 0
        self._drivers: list[tuple[Process, Strand]] = []
        self._rogue: Strand | None = None
        self._failures: list[TwoPhaseCommitError] = []

    def _strike(self, kind: str, act: Callable[[], Any]) -> None:
        self.judge.on_request(kind, self.simulation.process)
        self._lose_a_decided_transaction()
        self._die_after_a_decision()
        self.nemesis.strike(kind, act)

    def _lose_a_decided_transaction(self) -> None:
        """Once: between a decision and its commit, one of several transactions times out. The process may die with it."""
        if self._aims and self.nemesis.budget and len(found := self.judge.decided_and_open()) > 1:
            self._aims = False
            self.nemesis.count(Fault.OUTSIDER)
            lost = self.simulation.chance.choice(found)
            self.simulation.cluster.end(lost.transactional_id, lost.producer_id, lost.epoch, commit=False)
            self.simulation.trace.append(f"** {lost.transactional_id}, which is decided, was aborted from outside")
            if self._replaced and self.simulation.chance.random() < _DIES_TOO:
                self.nemesis.count(Fault.CRASH)
                self.simulation.crash()

    def _die_after_a_decision(self) -> None:
        """Once, before a query is replaced: a driver dies between its decision and the commit."""
        if self._dies and self.nemesis.budget and self.simulation.is_driver and self.judge.decided_and_open():
            self._dies = False
            self.nemesis.count(Fault.CRASH)
            self.simulation.trace.append("** the driver dies after its decision")
            self.simulation.crash()

    # -- while faults strike -------------------------------------------------------------------------------------------

    def run(self) -> None:
        """Run until a driver has finished every batch, or the drivers give up in doubt."""
        while (self._is_replaced or len(self.query.kept.commits) < self.shape.batches) and not self._gave_up():
            self._start_driver_if_none_runs()
            self._copy_the_checkpoint()
            if not self.simulation.step():
                raise ModelViolation("no process can take a step, but the query is not done")
            self._end_drivers()
            if self.started > _MAX_DRIVERS:
                raise ModelViolation(
                    f"the query is still not done after {_MAX_DRIVERS} drivers: {self._failures[-1:]!r}"
                )

    def _gave_up(self) -> bool:
        last = self._failures[-_GIVES_UP_AFTER:]
        return len(last) == _GIVES_UP_AFTER and all(isinstance(error, InDoubtError) for error in last)

    def _start_driver_if_none_runs(self) -> None:
        chance = self.simulation.chance
        if any(not process.paused for process, _ in self._drivers):
            if not self.nemesis.budget or len(self._drivers) > 1 or chance.random() > _RIVAL:
                return
            self.nemesis.count(Fault.RIVAL)
        elif self._drivers and chance.random() > _SECOND_DRIVER:
            return  # the driver is paused, so a new one will sooner or later replace it
        if self.started and self.nemesis.budget and chance.random() < _LONG_DOWNTIME:
            self.nemesis.count(Fault.TIMEOUT)
            self.simulation.pass_time(JUMP_MS)
        if self._is_replaced and self.query.kept.commits:
            is_decided = bool(self.judge.decided_and_open())
            if chance.random() < (_WITH_A_DECISION if is_decided else _AT_THIS_RESTART):
                self._replace_the_query()
        self._start(self.shape.batches)

    def _replace_the_query(self) -> None:
        """Start over with a new checkpoint, as a new query that ends the old one. The user's settings stay in the code.

        If a query will replace two queries, first start the second one, which has its own sink.
        """
        chance, old, number = self.simulation.chance, self.query, len(self._replaced) + 1
        self._replaced.append(old.kept)
        is_second = self._is_merged and number == 1
        sinks: list[KafkaSink] = [ANOTHER_SINK] if is_second else [SINK]
        if self._is_merged and not is_second:
            sinks = chance.sample([SINK, ANOTHER_SINK], 2)
        elif not is_second and chance.random() < _HAS_ANOTHER_SINK:
            sinks.append(ANOTHER_SINK)
        kept = Checkpointed(query_id=f"query-{'abc'[number]}", start=number * _ROWS_APART)
        self.query = Query(self.simulation, self.shape, kept, sinks)
        self.query.idle, self.query.overrides = old.idle, old.overrides
        self._aims = self._aims or chance.random() < _AIMED_AT_THE_NEXT
        if is_second:
            self._dies = chance.random() < _DIES_DECIDED
            self.simulation.trace.append(f"== {kept.query_id} starts with its own sink")
            return
        self._is_replaced = False
        self.nemesis.struck[Fault.REPLACED] += 1
        ended = {one.query_id for one in self._replaced}
        self.query.overrides = replace(old.overrides, end_query_ids=ended)
        self.simulation.trace.append(f"== {kept.query_id} replaces {', '.join(sorted(ended))}")

    def _start(self, batches: int) -> Strand:
        self.started += 1
        process = Process(f"d{self.started}")
        strand = self.simulation.launch(process, lambda: self.query.drive(process, batches))
        self._drivers.append((process, strand))
        self.simulation.trace.append(f"== {process.name} starts")
        return strand

    def _end_drivers(self) -> None:
        for process, strand in list(self._drivers):
            if strand.ended or not process.alive:
                self._drivers.remove((process, strand))
                for error in self._outcome(process, strand):
                    if not self._take_way_out(error, patience=1 - _HASTY):
                        self._failures.append(error)
        if self._rogue is not None and self._rogue.ended:
            for error in self._outcome(self._rogue.process, self._rogue):
                # After a stale read, the rogue may get far enough to be fenced: by a driver, or because its transaction
                # timed out.
                fenced = isinstance(error, FencedError) and NETWORK.stale
                if not fenced and not isinstance(error, (RefusedStartError, RetriableError)):
                    raise ModelViolation(f"a query with another history's checkpoint ended with {error!r}")
            self._rogue = None

    def _outcome(self, process: Process, strand: Strand) -> list[TwoPhaseCommitError]:
        self.simulation.kill(process)
        for other in self.simulation.processes:  # its workers notice that it has died, or keep running for a while
            if other.name.startswith(f"{process.name}/") and self.simulation.chance.random() < _ORPHANS_DIE:
                self.simulation.kill(other)
        if strand.error is None or isinstance(strand.error, Crash):
            return []
        self.simulation.trace.append(f"== {process.name} stopped with {strand.error!r}")
        if isinstance(strand.error, Interrupt):
            return []
        if not isinstance(strand.error, TwoPhaseCommitError):
            raise strand.error
        return [strand.error]

    def _take_way_out(self, error: BaseException, *, patience: float) -> bool:
        """Set the override that the error names, as its user does; it stays in the code. Return False if the error names none."""
        given, added = self._way_out_of(error)
        if not added:
            return False
        resumes = any(isinstance(one, ResumeAt) for one in added)
        if not resumes and self.simulation.chance.random() < patience:
            return False
        self.nemesis.struck[Fault.RESUME] += resumes
        self.judge.allowed.update(added)
        self.query.overrides = Overrides.of(given)
        self.simulation.trace.append(f"== the user sets {added}")
        return True

    def _way_out_of(self, error: BaseException) -> tuple[list[Override], list[Abandon | ResumeAt]]:
        """Return the overrides in the error's message, and those that the user has not passed yet."""
        given = named_overrides(str(error))
        passed = {*self.query.overrides.abandoned, self.query.overrides.resume_at}
        named = [replace(one, sinks=tuple(one.sinks)) if isinstance(one, Abandon) else one for one in given]
        return given, [one for one in named if isinstance(one, (Abandon, ResumeAt)) and one not in passed]

    def _copy_the_checkpoint(self) -> None:
        """Start a copy of the checkpoint with other source offsets for a finished batch; the start must be refused."""
        commits = self.query.kept.commits - self.query.kept.skipped
        if not commits or not self.nemesis.budget or self.simulation.chance.random() > _ROGUE:
            return
        self.nemesis.count(Fault.COPIED_CHECKPOINT)
        kept = copy.deepcopy(self.query.kept)
        batch = self.simulation.chance.choice(sorted(commits))
        kept.offsets = {n: end for n, end in kept.offsets.items() if n < batch} | {batch: kept.offsets[batch] + 1}
        kept.commits -= {n for n in kept.commits if n >= batch}
        kept.skipped -= {n for n in kept.skipped if n >= batch}
        process = Process(ROGUE)
        rogue = Query(self.simulation, self.shape, kept, self.query.sinks)

        def drive() -> None:
            rogue.drive(process, batch + 1)
            raise ModelViolation("a query with another history's checkpoint was accepted")

        self._rogue = self.simulation.launch(process, drive)
        self.simulation.trace.append(f"== a copy of the checkpoint starts at batch {batch}, with different offsets")

    # -- the end -------------------------------------------------------------------------------------------------------

    def finish(self) -> bool:
        """Without faults, let a last driver finish the rest and one more batch. If it is in doubt, the next uses its override.

        Returns:
            False if a driver was in doubt.
        """
        self.nemesis.rest()
        self.simulation.end()
        if self._replaced and self._is_replaced:  # the drivers gave up before one query has replaced both
            self._replace_the_query()
        # An attempt that lost a batch's race is swept with the next batch, so the last batch must not have such an
        # attempt.
        self.query.speculates = self.query.skips = False
        excused: set[str] = set()  # the ids of queries with one excused batch
        while (error := self._run_last_driver()) is not None:
            gap = isinstance(error, RefusedStartError)
            of = "" if gap else self._require_excusable(error)
            if of in excused or not self._take_way_out(error, patience=0):
                raise ModelViolation(f"the error offers no way out: {error!r}") from error
            excused |= set() if gap else {of}
        # Every transaction that the last driver saw committed is visible; any other one belongs to no driver.
        self.judge.require_all_visible_once(self.query.kept, self._replaced, _OUTPUT_PARTITIONS)
        return not excused

    def _run_last_driver(self) -> BaseException | None:
        strand = self._start(self.shape.batches + 1)
        while not strand.ended and self.simulation.step():
            pass
        if strand.error is None and not strand.ended:
            raise ModelViolation("the last driver did not end")
        return strand.error

    def _require_excusable(self, error: BaseException) -> str:
        """Check that the loss could not be repaired. Return the query that decided the lost batch."""
        if not isinstance(error, TwoPhaseCommitError):
            raise error
        if isinstance(error, DecisionInDoubtError) or not isinstance(error, InDoubtError):
            raise ModelViolation(f"the last driver stopped although there were no faults: {error!r}") from error
        _, added = self._way_out_of(error)
        of = str(added[-1].query_id) if added else ""
        # No query can write another query's batch again: the new checkpoint contains neither the old plan nor the
        # staged rows.
        is_lasting = of != self.query.kept.query_id or (self.shape.shuffled and not self.shape.staged)
        if not is_lasting or not self.nemesis.may_have_lost_transactions:
            raise ModelViolation(f"the batch is in doubt for no reason: {error!r}") from error
        return of


def play(seed: int) -> Verdict:
    """Play the history of a seed to its end and judge it."""
    history = History(seed)
    verdict = Verdict(seed=seed, shape=history.shape)
    try:
        history.run()
        verdict.in_doubt = not history.finish()
    except Exception as error:  # noqa: BLE001 - any error is the history's verdict
        verdict.violation = f"{type(error).__name__}: {error}"
    finally:
        history.simulation.end()
    verdict.drivers = history.started
    history.nemesis.struck[Fault.ABANDON] = len(history.judge.abandoned)
    verdict.struck = Counter({fault.name: count for fault, count in history.nemesis.struck.items()})
    verdict.trace = history.simulation.trace
    return verdict
