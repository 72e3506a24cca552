"""Measure a cluster with many sinks: the newest sink's cost, and the broker resources that all sinks take together.

The sinks are created a few at a time, so that a small machine can have a thousand. Each sink has a query's driver, whose tasks
write one row each. The driver writes a batch, decides a second one, and dies before it commits that batch. So the cluster has a
ledger, transactional ids and an open transaction for each sink, as if every sink were in the middle of a batch.
"""

from __future__ import annotations

import statistics
import tempfile
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from benchmarks.broker import counting_broker
from benchmarks.counting import WrongCountError, count, transactional_ids
from benchmarks.driver import Query, Tasks
from benchmarks.measured import TWOPC, Case
from benchmarks.topics import Topics
from twopc.counted import counted
from twopc.integration.operate.status import status
from twopc.integration.operate.subject import Connection
from twopc.sinks.kafka import KafkaSink
from twopc.sinks.kafka.committer import KafkaCommitter
from twopc.sinks.kafka.handle import ProducerIdentity
from twopc.sinks.kafka.reports import NONE
from twopc.sinks.kafka.settings import LEDGERS
from twopc.sinks.kafka.transactions import TransactionClient
from twopc.testing.crash_points import InjectedFault

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from benchmarks.broker import Broker
    from benchmarks.settings import Settings
    from twopc.attempt import Evidence
    from twopc.coordinator import Coordinator
    from twopc.sinks.kafka.handle import KafkaHandle

TITLE: Final = "Many sinks on one cluster: a batch with one task in the newest sink, without Spark"
X_LABEL: Final = ""  # no curve: the table shows all three points
_SINKS: Final = (1, 100, 1_000)
_QUICK: Final = (1, 5)
_AT_ONCE: Final = 6
_HEAP: Final = "2g"
#: The number of warm-up batches in an extra sink. They make the JVM compile the code that a broker in production runs.
_WARM_UP: Final = 60


def case_name(sinks: int) -> str:
    """Name the case with this number of sinks."""
    return counted(sinks, "sink")


def cases(settings: Settings) -> dict[str, int]:
    """Return each case's number of sinks, by the case's name."""
    return {case_name(sinks): sinks for sinks in (_QUICK if settings.quick else _SINKS)}


def measure(settings: Settings) -> Iterator[Case]:
    """Yield a case for each number of sinks, all on one broker."""
    with counting_broker(heap=_HEAP) as broker, tempfile.TemporaryDirectory() as name:
        cluster = _Cluster(broker, Path(name))
        cluster.warm_up(2 if settings.quick else _WARM_UP)
        for _, sinks in settings.wanted(cases(settings)):
            cluster.add(sinks - 1 - cluster.sinks)
            yield cluster.case(settings.rounds)


#: Whether the driver in this thread must die. A crash point would apply to all threads.
_doomed: Final = threading.local()


class _MortalCommitter(KafkaCommitter):
    """A committer that can die between the decision and its commit."""

    def commit(self, handles: Sequence[KafkaHandle], scan_start: Mapping[str, Any]) -> dict[KafkaHandle, Evidence]:
        if getattr(_doomed, "now", False):
            raise InjectedFault("decided, not committed")
        return super().commit(handles, scan_start)


class _MortalSink(KafkaSink):
    """The real sink, except for :class:`_MortalCommitter`."""

    def create_committer(self) -> KafkaCommitter:
        return _MortalCommitter(self)


class _Cluster:
    """A broker, and its sinks so far. The sink that warms up the broker does not count."""

    def __init__(self, broker: Broker, directory: Path) -> None:
        self.sinks = 0
        self._broker = broker
        self._directory = directory
        self._topics = Topics(broker.bootstrap_servers, 2)
        self._output = self._topics.create()
        self._written = 0

    def warm_up(self, batches: int) -> None:
        """Process batches in a sink that is not part of any case."""
        query = self._query()
        with closing(query.driver()) as driver:
            for number in range(batches):
                driver.process(query.batch(number), Tasks(query.sink, 1))
        self._written += batches

    def add(self, sinks: int) -> None:
        """Add sinks. Each stops in the middle of its second batch."""
        with ThreadPoolExecutor(_AT_ONCE) as pool:
            for _ in pool.map(lambda _: self._add_one(), range(sinks)):
                self.sinks += 1
                self._written += 2

    def case(self, rounds: int) -> Case:
        """Add another sink. Measure that sink, and then all sinks together."""
        query = self._query()
        facts: dict[str, float] = {}
        with closing(query.driver()) as driver:
            facts["ms to connect, create the ledger, write a batch"], requests, kib = self._asked(
                _batch(query, driver, 0)
            )
            facts |= {
                "requests until the end of the first batch": requests,
                "KiB until the end of the first batch": kib,
            }
            later = [self._asked(_batch(query, driver, number)) for number in range(1, rounds + 1)]
            facts |= {
                "requests per batch": statistics.median(requests for _, requests, _ in later),
                "KiB per batch": statistics.median(kib for *_, kib in later),
            }
            _decide_and_die(query, driver, rounds + 1)
        with closing(query.driver()) as driver:
            facts["ms to recover"], requests, kib = self._asked(_batch(query, driver, rounds + 1))
            facts |= {"requests per recovery": requests, "KiB per recovery": kib}
            _decide_and_die(query, driver, rounds + 2)
        self.sinks += 1
        self._written += rounds + 3
        facts |= self._of_all()
        return Case(
            name=case_name(self.sinks),
            unit="ms",
            samples={TWOPC: [took_ms for took_ms, *_ in later]},
            counted={TWOPC: count(self._servers, self._output, expected=self._written, keyed=False).records},
            facts={fact: {TWOPC: value} for fact, value in facts.items()},
        )

    def _of_all(self) -> dict[str, float]:
        """Measure the resources of all sinks and the cost of ``twopc status``, then commit the open transactions."""
        with closing(TransactionClient({"bootstrap_servers": [self._servers]})) as client:
            opened = client.list_open("").transactional_ids
            took_ms, requests, kib = self._asked(self._look_at_all)
            found = {
                "open transactions": float(len(opened)),
                "twopc status for all sinks, s": took_ms / 1000,
                "requests of twopc status, per sink": requests / (self.sinks + 1),
                "KiB of twopc status, per sink": kib / (self.sinks + 1),
            }
            described = client.describe(opened).items()
            ended = client.end([ProducerIdentity(tid, one.producer_id, one.producer_epoch) for tid, one in described])
        if set(ended.values()) != {NONE}:
            raise WrongCountError(f"not every open transaction could be committed: {ended}")
        partitions = self._topics.partition_counts(LEDGERS)
        return {
            **found,
            "ledger partitions": float(sum(partitions.values())),
            "transactional ids": float(len(transactional_ids(self._servers))),
            **self._broker.resources(),
            "ledgers on disk, MiB": self._broker.disk_mib(LEDGERS),
            "records in the ledgers, KiB": self._broker.disk_bytes(*partitions) / 1024,
            "KiB in __transaction_state": self._broker.disk_bytes("__transaction_state") / 1024,
            "KiB in __cluster_metadata": self._broker.disk_bytes("__cluster_metadata") / 1024,
        }

    def _look_at_all(self) -> None:
        seen = len(status(None, Connection(self._servers)).facts["sinks"])
        if seen != self.sinks + 1:
            raise WrongCountError(f"twopc status shows {seen} sinks instead of {self.sinks + 1}")

    @property
    def _servers(self) -> str:
        return self._broker.bootstrap_servers

    def _query(self) -> Query:
        return Query(self._servers, self._output, self._directory, sink_type=_MortalSink)

    def _add_one(self) -> None:
        query = self._query()
        with closing(query.driver()) as driver:
            _batch(query, driver, 0)()
            _decide_and_die(query, driver, 1)

    def _asked(self, do: Callable[[], None]) -> tuple[float, float, float]:
        """Call ``do``. Return its duration in ms, and the requests and KiB that the broker counted in the meantime."""
        before = self._broker.read()
        began = time.perf_counter()
        do()
        took_ms = 1000 * (time.perf_counter() - began)
        since = self._broker.read().since(before)
        return took_ms, float(since.all_requests), since.wire_bytes / 1024


def _batch(query: Query, driver: Coordinator, number: int) -> Callable[[], None]:
    return lambda: driver.process(query.batch(number), Tasks(query.sink, 1))


def _decide_and_die(query: Query, driver: Coordinator, number: int) -> None:
    _doomed.now = True
    try:
        _batch(query, driver, number)()
    except InjectedFault:
        return
    finally:
        _doomed.now = False
    raise AssertionError("the driver has passed its crash point")
