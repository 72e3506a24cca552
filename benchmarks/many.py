"""Measure each query's resources and cost when many queries share a cluster.

Here, only a query's driver runs: the real coordinator and sink, with batches of one small task that one worker process runs.
Spark itself is left out, because fifty Spark queries need more than this machine has. As with any sink, Spark would add its own
tasks and its source's consumers.
"""

from __future__ import annotations

import contextlib
import statistics
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Final

import psutil

from benchmarks.broker import counting_broker
from benchmarks.counting import count, transactional_ids
from benchmarks.driver import Query, Tasks, workers
from benchmarks.measured import TWOPC, Case
from benchmarks.topics import Topics
from twopc.counted import counted

if TYPE_CHECKING:
    from collections.abc import Iterator
    from concurrent.futures import Executor

    from benchmarks.broker import Broker
    from benchmarks.settings import Settings

TITLE: Final = "Time of a batch with one task"
X_LABEL: Final = "number of queries"
_QUERIES: Final = (1, 10, 50)
_ALL_QUERIES: Final = (*_QUERIES, 200, 1_000)
_QUICK: Final = (1, 3)
_IDLE_S: Final = 5
#: The requests that transaction coordinators answer.
_OF_COORDINATORS: Final = ("InitProducerId", "AddPartitionsToTxn", "EndTxn", "DescribeTransactions", "ListTransactions")
DRIVER_CONNECTIONS: Final = "connections of the drivers"
WORKER_CONNECTIONS: Final = "connections of a Python worker"
LEDGER_PARTITIONS: Final = "ledger partitions"
IDS: Final = "transactional ids"
REQUESTS: Final = "requests per batch"


def case_name(queries: int) -> str:
    """Name the case with this number of queries."""
    return counted(queries, "query", "queries")


def cases(settings: Settings) -> dict[str, int]:
    """Return each case's number of queries, by the case's name."""
    chosen = _ALL_QUERIES if settings.whole else _QUICK if settings.quick else _QUERIES
    return {case_name(queries): queries for queries in chosen}


def measure(settings: Settings) -> Iterator[Case]:
    """Yield a case for each number of queries. Each case has its own broker, so that the broker counts only that case."""
    for _, queries in settings.wanted(cases(settings)):
        with (
            counting_broker(heap="2g") as broker,
            tempfile.TemporaryDirectory() as name,
            workers(1) as pool,
        ):
            yield _case(broker, Path(name), pool, queries, settings.rounds)


def _case(broker: Broker, directory: Path, pool: Executor, queries: int, rounds: int) -> Case:
    topics = Topics(broker.bootstrap_servers, 2)
    output = topics.create()
    process = psutil.Process()
    base = broker.read().connections
    threads, resident = process.num_threads(), process.memory_info().rss
    with contextlib.ExitStack() as stack:
        opened = [Query(broker.bootstrap_servers, output, directory) for _ in range(queries)]
        drivers = [query.driver() for query in opened]
        for driver in drivers:
            stack.callback(driver.close)
        times_ms: list[float] = []
        before = broker.read()
        # The first batch acquires the sink, so neither its time nor its requests count.
        for number in range(rounds + 1):
            if number == 1:
                before = broker.read()
            for query, driver in zip(opened, drivers, strict=True):
                began = time.perf_counter()
                driver.process(query.batch(number), Tasks(query.sink, 1, pool, ahead=True))
                if number:
                    times_ms.append(1000 * (time.perf_counter() - began))
        working = broker.read()
        since, batches = working.since(before), queries * rounds
        time.sleep(_IDLE_S)  # this is the time to measure, not a wait for an event
        idle = broker.read().since(working)
        pool.shutdown()
        alone = broker.read().connections
        ledgers = sum(topics.partition_count(query.sink.ledger) for query in opened)
        facts = {
            DRIVER_CONNECTIONS: float(alone - base),
            WORKER_CONNECTIONS: float(working.connections - alone),
            LEDGER_PARTITIONS: float(ledgers),
            IDS: float(len(transactional_ids(broker.bootstrap_servers))),
            REQUESTS: since.all_requests / batches,
            **{f"{kind} per batch": since.requests.get(kind, 0) / batches for kind in _OF_COORDINATORS},
            "requests per second when idle": idle.all_requests / _IDLE_S,
            "threads of the driver": float(process.num_threads() - threads),
            "memory of the driver, MiB": (process.memory_info().rss - resident) / 2**20,
        }
    found = count(broker.bootstrap_servers, output, expected=queries * (rounds + 1), keyed=False)
    return Case(
        name=case_name(queries),
        unit="ms",
        x=queries,
        samples={TWOPC: [statistics.median(times_ms[start : start + queries]) for start in range(0, batches, queries)]},
        counted={TWOPC: found.records},
        facts={fact: {TWOPC: value} for fact, value in facts.items()},
    )
