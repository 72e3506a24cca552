"""Measure the driver's part of a two-phase batch, from the last vote to the proof, for different numbers of transactions."""

from __future__ import annotations

import statistics
import tempfile
import time
from collections import defaultdict
from pathlib import Path
from typing import TYPE_CHECKING, Final

from benchmarks.broker import Counts, counting_broker
from benchmarks.counting import count
from benchmarks.driver import Query, Tasks, workers
from benchmarks.measured import TWOPC, Case
from benchmarks.memory import peak_mib, reset_peak
from benchmarks.topics import Topics
from twopc.counted import counted
from twopc.pending import Pending

if TYPE_CHECKING:
    from collections.abc import Iterator
    from concurrent.futures import Executor

    from benchmarks.broker import Broker
    from benchmarks.settings import Settings

TITLE: Final = "Time of the driver's part of a two-phase batch"
X_LABEL: Final = "number of transactions per decision"
_HANDLES: Final = (1, 2, 10, 50, 200, 1_000)
_ALL_HANDLES: Final = (*_HANDLES, 5_000)
_QUICK: Final = (1, 2, 10)
#: The numbers of transactions and of decisions in each warm-up case. They make the broker's JVM compile the code that a broker in
#: production compiled long ago.
_WARM_UP: Final = ((2, 200), (200, 5))
#: Each case's first batches do not count. They acquire the sink and connect, which a query does only once.
_CONNECTING: Final = 3
_STATE: Final = "__transaction_state"
LEDGER_KIB: Final = "KiB in the ledger"
STATE_KIB: Final = "KiB in __transaction_state"


class _Proof(Pending):
    """Record when a batch is proven, by ``time.perf_counter``. At that time the coordinator begins to tidy up."""

    at = -1.0

    def enter(self, phase: str) -> None:
        super().enter(phase)
        if phase == "finish":
            self.at = time.perf_counter()


def case_name(handles: int) -> str:
    """Name the case with this number of transactions."""
    return counted(handles, "transaction")


def cases(settings: Settings) -> dict[str, int]:
    """Return each case's number of transactions, by the case's name."""
    chosen = _ALL_HANDLES if settings.whole else _QUICK if settings.quick else _HANDLES
    return {case_name(handles): handles for handles in chosen}


def measure(settings: Settings) -> Iterator[Case]:
    """Yield a case for each number of transactions."""
    with counting_broker() as broker, tempfile.TemporaryDirectory() as name, workers() as pool:
        for handles, decisions in () if settings.quick else _WARM_UP:
            _case(broker, Path(name), pool, handles, decisions)
        for _, handles in settings.wanted(cases(settings)):
            yield _case(broker, Path(name), pool, handles, settings.rounds)


def _case(broker: Broker, directory: Path, pool: Executor, handles: int, rounds: int) -> Case:
    topics = Topics(broker.bootstrap_servers, 2)
    query = Query(broker.bootstrap_servers, topics.create(), directory)
    driver = query.driver()
    times_ms: list[float] = []
    facts: dict[str, list[float]] = defaultdict(list)
    try:
        for number in range(_CONNECTING + rounds):
            readings: list[Counts] = []
            disk = broker.disk_bytes(query.sink.ledger), broker.disk_bytes(_STATE)

            def voted(readings: list[Counts] = readings) -> None:
                reset_peak()
                readings.append(broker.read())

            tasks = Tasks(query.sink, handles, pool, prepared=voted)
            proof = _Proof()
            driver.process(query.batch(number), tasks, proof)
            if number < _CONNECTING:
                continue
            times_ms.append(1000 * (proof.at - tasks.prepared_at))
            since = broker.read().since(readings[0])
            facts["requests"].append(since.all_requests)
            facts["KiB on the wire"].append(since.wire_bytes / 1024)
            facts[LEDGER_KIB].append((broker.disk_bytes(query.sink.ledger) - disk[0]) / 1024)
            facts[STATE_KIB].append((broker.disk_bytes(_STATE) - disk[1]) / 1024)
            facts["peak memory of the driver, MiB"].append(peak_mib() or 0)
    finally:
        driver.close()
    found = count(
        broker.bootstrap_servers, query.sink.topic or "", expected=handles * (_CONNECTING + rounds), keyed=False
    )
    return Case(
        name=case_name(handles),
        unit="ms",
        x=handles,
        samples={TWOPC: times_ms},
        counted={TWOPC: found.records},
        facts={fact: {TWOPC: statistics.median(values)} for fact, values in facts.items()},
    )
