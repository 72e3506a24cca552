"""Which stocks of ready producers a process keeps."""

from __future__ import annotations

import pytest

from sinks.kafka import producer_pool as kafka_producers
from sinks.kafka.producer_pool import StockKey, stock_for


@pytest.fixture(autouse=True)
def _none_at_first(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kafka_producers, "_stocks", {})


def key_of(sink: str) -> StockKey:
    return StockKey(sink=sink, incarnation=0, ledger="ledger", config=(("bootstrap.servers", "nowhere:1"),))


def test_a_worker_that_outlives_many_queries_keeps_the_stocks_that_it_used_last() -> None:
    first = stock_for(key_of("first"), timeout_ms=1)
    for number in range(kafka_producers._MOST_STOCKS - 1):
        stock_for(key_of(f"other-{number}"), timeout_ms=1)
    assert stock_for(key_of("first"), timeout_ms=1) is first
    stock_for(key_of("one more"), timeout_ms=1)
    assert stock_for(key_of("first"), timeout_ms=1) is first
    assert "other-0" not in kafka_producers._stocks
    assert len(kafka_producers._stocks) == kafka_producers._MOST_STOCKS


def test_a_process_that_was_forked_keeps_no_stock_of_its_parents(monkeypatch: pytest.MonkeyPatch) -> None:
    """A producer's threads stay in the parent; and both would use one transactional id."""
    parents = stock_for(key_of("s"), timeout_ms=1)
    monkeypatch.setattr("sinks.kafka.producer_pool.os.getpid", lambda: -1)
    childs = stock_for(key_of("s"), timeout_ms=1)
    assert childs is not parents
    assert childs._worker != parents._worker
