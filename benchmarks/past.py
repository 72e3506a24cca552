"""Measure how long recovery takes after many earlier batches: a new driver completes a decided but uncommitted batch.

All batches are real: they are decided, and truncated from the ledger, as in a query that has run for a long time. The earlier
batches are empty, so that a hundred thousand of them are affordable. The last batch has two transactions. The time runs from the
new driver's first call to the proof.
"""

from __future__ import annotations

import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Final

from benchmarks.broker import counting_broker
from benchmarks.counting import count
from benchmarks.driver import Query, Tasks
from benchmarks.measured import TWOPC, Case
from benchmarks.memory import peak_mib, reset_peak
from benchmarks.topics import Topics
from twopc.counted import counted
from twopc.testing.crash_points import InjectedFault, arm, disarm

if TYPE_CHECKING:
    from collections.abc import Iterator

    from benchmarks.broker import Broker
    from benchmarks.settings import Settings

TITLE: Final = "Time to recover a decided batch"
X_LABEL: Final = "number of earlier batches"
_BATCHES: Final = (10, 100, 1_000)
_ALL_BATCHES: Final = (*_BATCHES, 10_000, 100_000)
_QUICK: Final = (10, 100)
_TRANSACTIONS: Final = 2
_DECIDED: Final = "driver.decided"


def cases(settings: Settings) -> dict[str, int]:
    """Return each case's number of earlier batches, by the case's name."""
    chosen = _ALL_BATCHES if settings.whole else _QUICK if settings.quick else _BATCHES
    return {counted(batches, "batch", "batches"): batches for batches in chosen}


def measure(settings: Settings) -> Iterator[Case]:
    """Yield a case for each number of batches. The same query runs through all cases."""
    with counting_broker() as broker, tempfile.TemporaryDirectory() as name:
        topics = Topics(broker.bootstrap_servers, 2)
        query = Query(broker.bootstrap_servers, topics.create(), Path(name))
        done = written = 0
        for case, batches in settings.wanted(cases(settings)):
            _process_empty(query, done, batches)
            recovered = [_recover(broker, query, batches + number) for number in range(settings.rounds)]
            done = batches + settings.rounds
            written += _TRANSACTIONS * settings.rounds
            found = count(broker.bootstrap_servers, query.sink.topic or "", expected=written, keyed=False)
            samples, facts = [took_ms for took_ms, _ in recovered], recovered[-1][1]
            yield Case(
                name=case, unit="ms", x=batches, samples={TWOPC: samples}, counted={TWOPC: found.records}, facts=facts
            )


def _process_empty(query: Query, first: int, until: int) -> None:
    driver = query.driver()
    try:
        for number in range(first, until):
            driver.process(query.batch(number), Tasks(query.sink, 0))
    finally:
        driver.close()


def _recover(broker: Broker, query: Query, number: int) -> tuple[float, dict[str, dict[str, float]]]:
    """Decide a batch in a driver that then dies. Return the next driver's recovery time in ms, and its other costs."""
    crashed = query.driver()
    arm(_DECIDED, _fail)
    try:
        crashed.process(query.batch(number), Tasks(query.sink, _TRANSACTIONS))
        raise AssertionError("the driver has passed its crash point")
    except InjectedFault:
        pass
    finally:
        disarm()
        crashed.close()
    reset_peak()
    before = broker.read()
    began = time.perf_counter()
    driver = query.driver()
    try:
        driver.process(query.batch(number), Tasks(query.sink, _TRANSACTIONS))
        took_ms = 1000 * (time.perf_counter() - began)
        since = broker.read().since(before)
    finally:
        driver.close()
    found = {
        "requests": float(since.all_requests),
        "KiB on the wire": since.wire_bytes / 1024,
        "peak memory of the driver, MiB": peak_mib() or 0,
    }
    return took_ms, {fact: {TWOPC: value} for fact, value in found.items()}


def _fail() -> None:
    raise InjectedFault(_DECIDED)
