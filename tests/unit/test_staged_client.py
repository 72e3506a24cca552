"""Translating a store's errors: known errors get a remedy, transient ones a retry; the rest is blamed on the store."""

from __future__ import annotations

import gc
import re
import weakref
from typing import TYPE_CHECKING, Any

import pytest
from redis import exceptions
from tenacity import wait_none

from twopc.errors import BadRecordError, ConfigurationError, RetriableError, TwoPhaseCommitError, UnavailableError
from twopc.sinks.hbase import HBaseSink, Put
from twopc.sinks.hbase.client import HBaseClient
from twopc.sinks.hbase.cluster import Cluster
from twopc.sinks.hbase.errors import AbsentTableError, RemoteError
from twopc.sinks.redis import IncrBy, RedisSink
from twopc.sinks.redis.client import RedisClient, Safety
from twopc.sinks.staged.client import StoreClient

if TYPE_CHECKING:
    from collections.abc import Sequence

    import redis


def _nowhere() -> redis.Redis:
    raise AssertionError("no test connects")


REDIS = RedisClient(_nowhere, timeout_ms=1, safety=Safety())
HBASE = HBaseClient(Cluster("h:1", user="u", timeout_s=1), timeout_s=1)


@pytest.mark.parametrize(
    ("client", "error", "kind", "words"),
    [
        (REDIS, exceptions.AuthenticationError("invalid username-password pair"), ConfigurationError, "user and password"),
        (REDIS, exceptions.ConnectionError("Error 13. Permission denied."), ConfigurationError, "docs/redis.md"),
        (REDIS, exceptions.OutOfMemoryError("used memory > 'maxmemory'"), RetriableError, "raise maxmemory"),
        (REDIS, exceptions.MovedError("1 h:1"), UnavailableError, "1 h:1"),
        (REDIS, exceptions.MasterDownError("link with MASTER is down"), UnavailableError, "MASTER"),
        (REDIS, exceptions.ResponseError("unknown command"), ConfigurationError, "Redis 6.2, Valkey 7.2 or newer"),
        (HBASE, AbsentTableError("there is no table 't'"), ConfigurationError, "Create the table"),
        (HBASE, RemoteError("o.a.h.AccessDeniedException", "no\n at x"), ConfigurationError, "no. Grant .*docs/hbase.md"),
        (HBASE, RemoteError("o.a.h.NotServingRegionException", ""), UnavailableError, "NotServingRegionException"),
        (HBASE, RemoteError("o.a.h.DoNotRetryIOException", "exceeds limit of 10"), BadRecordError, "maxsize"),
        (HBASE, RemoteError("o.a.h.DoNotRetryIOException", "boom"), ConfigurationError, "HBase rejected.*2.4 or newer"),
        (HBASE, TimeoutError(), UnavailableError, "TimeoutError"),
    ],
)  # fmt: skip
def test_a_store_error_is_translated_with_a_remedy(
    client: StoreClient[object], error: Exception, kind: type[TwoPhaseCommitError], words: str
) -> None:
    found = client.translate(error, "sink 's', staging")
    assert type(found) is kind
    with pytest.raises(kind, match=rf"(?s)^sink 's', staging: .*{words}"):
        raise found


@pytest.mark.parametrize(
    "waits", [{}, {"wait_replicas": 2}, {"wait_aof": True}, {"wait_replicas": 1, "wait_aof": True}]
)
def test_a_step_has_time_for_another_call_after_one_without_a_response(waits: dict[str, Any]) -> None:
    redis_sink = RedisSink(name="s", url="redis://h", mapping=IncrBy("n"), timeout_ms=9_000, **waits)
    client: Any = redis_sink.connect()
    assert client.connection_pool.connection_kwargs["socket_timeout"] == 3 + len(waits)
    put = Put("{id}", {"d:v": "v"})
    hbase = HBaseSink(name="s", zookeeper="h:1", table="t", mapping=put, timeout_ms=9_000, user="u").create_client()
    assert (hbase.cluster._timeout_s, hbase._timeout_s) == (3, 9)


class Starting(StoreClient[str]):
    """Its server responds from the second try on."""

    failures = (ConnectionError,)
    limits = ()
    backoff = wait_none()

    def __init__(self) -> None:
        super().__init__(timeout_s=60)
        self._tries = 0

    @staticmethod
    def is_transient(answer: object) -> bool:
        return isinstance(answer, ConnectionError)

    def close(self) -> None:
        """There is no connection."""

    def _sizes(self, call: str) -> Sequence[int]:
        del call
        return ()

    def _find(self, call: str, last: Any) -> tuple[None, None]:
        del call, last
        self._tries += 1
        if self._tries == 1:
            raise ConnectionError("the server is starting")
        return None, None

    def _send(self, server: None, calls: Sequence[str], mine: Sequence[tuple[int, None]], answers: list[Any]) -> None:
        del server, calls
        for at, _ in mine:
            answers[at] = "OK"

    def _recover(self, calls: Sequence[str], answers: Sequence[Any]) -> None:
        """Do nothing."""


def test_a_failure_cleared_by_a_retry_keeps_no_reference_to_its_caller() -> None:
    """Under Spark Connect, the garbage collector must not release a batch (``twopc.integration.connect.worker``)."""

    class Batch:
        pass

    def write(batch: Batch) -> None:
        del batch
        assert Starting().execute(["GET"]) == ["OK"]

    batch = Batch()
    released = weakref.ref(batch)

    def process(batch_df: Batch) -> None:
        write(batch_df)

    gc.disable()
    try:
        process(batch)
        del batch
        assert released() is None
    finally:
        gc.enable()


@pytest.mark.parametrize(
    ("client", "error", "reason"),
    [
        (REDIS, exceptions.OutOfMemoryError("used memory > 'maxmemory'"), r"used memory > 'maxmemory'\. .*raise maxmemory"),
        (REDIS, exceptions.TimeoutError("too late"), "Redis does not respond: too late"),
        (REDIS, exceptions.ConnectionError("Connection closed by server."), "Redis does not respond: Connection closed.*"),
        (REDIS, ConnectionRefusedError("refused"), "Redis does not respond: refused"),
        (REDIS, exceptions.BusyLoadingError("Redis is loading"), r"Redis is loading\. Wait until .*"),
        (REDIS, exceptions.ConnectionError("max number of clients reached"), r"max number of .*\. Raise maxclients"),
        (REDIS, exceptions.ResponseError("unknown command"), "unknown command"),
        (REDIS, exceptions.ClusterDownError("CLUSTERDOWN The cluster is down"), "CLUSTERDOWN The cluster is down"),
        (REDIS, exceptions.ResponseError("MISCONF Redis cannot save"), "MISCONF Redis cannot save"),
        (HBASE, TimeoutError(), "HBase does not respond: TimeoutError"),
        (HBASE, RemoteError("o.a.h.RegionTooBusyException", "o.a.h.RegionTooBusyException: full\n at x"), "o.*TooBusy.*: full"),
        (HBASE, RemoteError("o.a.h.RegionTooBusyException", ""), "o.a.h.RegionTooBusyException"),
    ],
)  # fmt: skip
def test_only_a_store_that_does_not_respond_is_reported_as_silent_after_the_decision(
    client: StoreClient[object], error: Exception, reason: str
) -> None:
    assert re.fullmatch(reason, client.reason(error))
