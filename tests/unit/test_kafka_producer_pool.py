"""Which pools of ready producers a process keeps."""

from __future__ import annotations

import dataclasses
import os
import threading
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, cast

import pytest
from confluent_kafka import KafkaError, KafkaException

from twopc.sinks.kafka import KafkaSink, batch_size, idle, producer_pool
from twopc.sinks.kafka.batch_size import batch_size_of
from twopc.sinks.kafka.producer import ReadyProducer
from twopc.sinks.kafka.producer_pool import PoolKey, ProducerPool, drop_pool, pool_for
from twopc.sinks.kafka.settings import Place

if TYPE_CHECKING:
    from collections.abc import Callable


@pytest.fixture(autouse=True)
def _no_pools(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(producer_pool, "_pools", {})


def key_of(sink: str, servers: str = "nowhere:1") -> PoolKey:
    return PoolKey(place=Place(sink, "ledger", servers), driver_epoch=0, config=(("bootstrap.servers", servers),))


def test_sinks_with_the_same_name_on_two_clusters_do_not_replace_each_others_producers() -> None:
    """Each replacement would leave one more transactional id on the brokers."""
    one, other = (pool_for(key_of("s", servers), timeout_ms=1) for servers in ("one:1", "other:1"))
    assert pool_for(key_of("s", "one:1"), timeout_ms=1) is one
    drop_pool(one.key.place, 0)
    assert (one._is_closed, other._is_closed) == (True, False)
    assert pool_for(key_of("s", "other:1"), timeout_ms=1) is other


def test_sinks_with_the_same_name_on_two_clusters_learn_the_limits_of_their_own_topics() -> None:
    one, other = (KafkaSink(name="s", topic="t", bootstrap_servers=servers) for servers in ("one:1", "other:1"))
    assert batch_size_of(one, 0) is batch_size_of(one, 0)
    assert batch_size_of(one, 0)._settings is one
    assert batch_size_of(other, 0)._settings is other


def test_a_process_keeps_the_producers_of_its_most_recently_used_pools() -> None:
    """The limit is for the idle producers only: each costs threads and memory."""
    first = pool_for(key_of("first"), timeout_ms=1)
    others = [pool_for(key_of(f"other-{number}"), timeout_ms=1) for number in range(producer_pool._MOST_READY - 1)]
    for pool in (first, *others):
        pool._ready = [ReadyProducer(cast("Any", SimpleNamespace(poll=lambda _timeout: 0)), "idle", 0, {})]
    assert pool_for(key_of("first"), timeout_ms=1) is first
    pool_for(key_of("one more"), timeout_ms=1)
    assert [len(pool._ready) for pool in (first, *others)] == [1, 0, *[1] * (len(others) - 1)]
    assert pool_for(key_of("other-0"), timeout_ms=1) is others[0]
    assert not others[0]._is_closed


def test_any_number_of_sinks_in_a_process_keep_their_transactional_ids() -> None:
    """Each new pool has new ids, which the brokers keep for a week."""
    names = [f"s{number}" for number in range(producer_pool._MOST_READY + 1)]
    workers = {pool_for(key_of(name), timeout_ms=1)._worker for _batch in range(20) for name in names}
    assert len(workers) == len(names)


def test_a_process_forgets_the_pools_that_it_has_not_used_for_the_longest_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """A worker does not hear that a query has ended."""
    monkeypatch.setattr(producer_pool, "_MOST_POOLS", 2)
    pools = [pool_for(key_of(name), timeout_ms=1) for name in ("first", "second", "third")]
    assert [pool._is_closed for pool in pools] == [True, False, False]
    assert list(producer_pool._pools.values()) == pools[1:]


def test_any_number_of_sinks_in_a_process_learn_the_limits_of_their_topics_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Each question costs a batch a new client and a request."""
    monkeypatch.setattr(batch_size, "_known", {})
    sinks = [KafkaSink(name=f"s{number}", topic="t", bootstrap_servers="nowhere:1") for number in range(65)]
    known = {id(batch_size_of(sink, 0)): batch_size_of(sink, 0) for _batch in range(20) for sink in sinks}
    assert len(known) == len(sinks)


def test_the_limits_of_the_sink_that_was_not_used_for_the_longest_time_are_forgotten_first(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(batch_size, "_known", {})
    monkeypatch.setattr(batch_size, "_MOST_SINKS", 2)
    one, two, three = (KafkaSink(name=name, topic="t", bootstrap_servers="nowhere:1") for name in ("1", "2", "3"))
    kept = batch_size_of(one, 0)
    batch_size_of(two, 0)
    assert batch_size_of(one, 0) is kept
    batch_size_of(three, 0)
    assert batch_size_of(one, 0) is kept


def test_an_ended_driver_leaves_no_idle_producers_behind_and_drops_none_of_a_later_driver() -> None:
    pool = pool_for(key_of("s"), timeout_ms=1)
    drop_pool(key_of("s").place, 7)
    assert pool_for(key_of("s"), timeout_ms=1) is pool
    drop_pool(key_of("s").place, 0)
    assert not producer_pool._pools
    drop_pool(key_of("s").place, 0)


class FakePool(ProducerPool):
    """Makes producers without a broker. ``made`` has their numbers."""

    def __init__(self) -> None:
        super().__init__(key_of("s"), timeout_ms=1)
        self.made: list[int] = []

    def _make(self, sequence: int) -> ReadyProducer:
        self.made.append(sequence)
        idle_producer = cast("Any", SimpleNamespace(poll=lambda _timeout: 0))
        return ReadyProducer(idle_producer, str(sequence), sequence, {})

    def run(self, batch: int, tasks: int = 1) -> None:
        """Run tasks, one after another. Each finds the producers that were being made when it began."""
        for _ in range(tasks):
            self.take(batch, batch - 1)
            self.replenish(batch - 1)
            if (making := self._making) is not None:
                making.join()


def test_a_worker_prepares_producers_only_after_it_has_lived_from_one_batch_to_the_next() -> None:
    """A worker that is new in each batch would leave a second id for each task, and never use it."""
    pool = FakePool()
    pool.run(5)
    pool.run(5)
    assert pool.made == [0, 1]
    pool.run(6)
    assert pool.made == [0, 1, 0, 1]
    pool.run(7)
    assert pool.made == [0, 1, 0, 1, 0]


def test_attempts_at_one_batch_leave_one_id_each_and_a_bounded_number_of_idle_producers() -> None:
    """A batch may be retried for hours. Each attempt left one more idle producer, with its threads and sockets."""
    pool = FakePool()
    pool.run(0)
    for _ in range(300):
        pool.run(1)
        assert 1 <= len(pool._ready) <= 2
    assert len(set(pool.made)) <= 300 + 3
    for batch in range(2, 5):
        pool.run(batch)
    assert len(pool._ready) == 1


def test_a_worker_with_many_tasks_in_a_batch_keeps_as_few_idle_producers_as_one_with_two() -> None:
    """Every task still finds a producer that was prepared while the task before it ended."""
    pool = FakePool()
    pool.run(0, tasks=50)
    for batch in range(1, 4):
        pool.run(batch, tasks=50)
        assert len(pool._ready) == 2
    by_itself = len(pool.made)
    pool.take(4, 3)
    pool.take(4, 3)
    assert len(pool.made) == by_itself


def test_idle_producers_are_polled_and_those_in_use_are_not(monkeypatch: pytest.MonkeyPatch) -> None:
    """Otherwise, their statistics pile up for as long as no batch comes. A taken one belongs to its task."""
    monkeypatch.setattr(idle, "_EVERY_S", 0.001)
    idle._served.cache_clear()  # so that a new thread starts, which is not asleep yet
    pool = pool_for(key_of("s"), timeout_ms=1)
    served = {name: threading.Event() for name in ("failing", "idle", "taken")}

    def producer(name: str) -> Any:
        def poll(_timeout: float) -> int:
            served[name].set()
            if name == "failing":
                raise KafkaException(KafkaError(KafkaError._FATAL))
            return 0

        return ReadyProducer(cast("Any", SimpleNamespace(poll=poll)), name, 0, {})

    pool._ready = [producer("failing"), producer("idle"), producer("taken")]
    assert pool.take(0, -1).transactional_id == "taken"
    served["taken"].clear()
    for _ in range(2):
        served["idle"].clear()
        assert served["idle"].wait(30)
    assert served["failing"].is_set()
    assert not served["taken"].is_set()


def test_a_forked_process_keeps_none_of_its_parents_pools() -> None:
    """A producer's threads stay in the parent, and both processes would use one transactional id."""
    parents = pool_for(key_of("s"), timeout_ms=1)
    assert parents.key.pid == os.getpid()
    childs = pool_for(dataclasses.replace(key_of("s"), pid=-1), timeout_ms=1)
    assert childs is not parents
    assert childs._worker != parents._worker


def test_a_task_waits_only_until_the_first_of_the_producers_in_the_making_is_ready(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Batches may follow so quickly that the producers of the next one are still being made when its first task begins."""
    pool = FakePool()
    pool.run(0, tasks=2)
    for _ in range(2):
        pool.take(1, 0)
    may_go_on = threading.Event()
    make = pool._make

    def make_slowly(sequence: int) -> ReadyProducer:
        if len(pool.made) == 5:
            assert may_go_on.wait(30)
        return make(sequence)

    monkeypatch.setattr(pool, "_make", make_slowly)
    pool.replenish(0)
    taking = threading.Thread(target=pool.take, args=(2, 1), daemon=True)
    taking.start()
    taking.join(30)
    assert not taking.is_alive()
    may_go_on.set()


def test_no_task_waits_for_a_thread_that_could_not_start(monkeypatch: pytest.MonkeyPatch) -> None:
    pool = FakePool()
    pool.run(0)
    pool.take(1, 0)

    def fail(_: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    with monkeypatch.context() as patched:
        patched.setattr(threading.Thread, "start", fail)
        with pytest.raises(RuntimeError):
            pool.replenish(0)
    taking = threading.Thread(target=pool.take, args=(2, 1), daemon=True)
    taking.start()
    taking.join(30)
    assert not taking.is_alive()


def test_a_task_makes_its_own_producer_if_none_could_be_made_in_advance(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    pool = FakePool()
    pool.run(0)
    pool.take(1, 0)
    make, may_fail = pool._make, threading.Event()

    def fail(_: int) -> ReadyProducer:
        monkeypatch.setattr(pool, "_make", make)
        assert may_fail.wait(30)
        raise RuntimeError("away")

    monkeypatch.setattr(pool, "_make", fail)
    pool.replenish(0)
    taking = threading.Thread(target=pool.take, args=(2, 1), daemon=True)
    taking.start()
    may_fail.set()
    taking.join(30)
    assert not taking.is_alive()
    assert "no producer could be prepared in advance" in caplog.text


def test_a_client_that_fails_does_not_keep_the_others_from_being_served(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    served, failed = threading.Event(), threading.Event()

    class Client:
        def __init__(self, serve: Callable[[], None]) -> None:
            self.serve_idle = serve

    failures: list[None] = []

    def fail() -> None:
        failures.append(None)
        if len(failures) == 3:
            failed.set()
        raise RuntimeError("as planned")

    monkeypatch.setattr(idle, "_EVERY_S", 0.001)
    idle._served.cache_clear()
    clients = [Client(fail), Client(served.set)]
    idle.keep_serving(clients[0])
    assert failed.wait(30)  # more than once, so the thread lives
    idle.keep_serving(clients[1])
    assert served.wait(30)
    clients.clear()
    assert caplog.text.count("RuntimeError: as planned") == 1
