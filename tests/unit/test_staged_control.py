"""The control record in HBase and Redis."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from redis.exceptions import NoPermissionError
from redis.exceptions import TimeoutError as NoAnswerError

from twopc import control
from twopc.errors import ConfigurationError, TwoPhaseCommitError, UnavailableError
from twopc.sinks.hbase import HBaseSink, Put
from twopc.sinks.hbase.client import HBaseClient
from twopc.sinks.hbase.errors import AbsentTableError
from twopc.sinks.redis import RedisSink
from twopc.sinks.redis.client import RedisClient
from twopc.sinks.redis.keys import RedisHandle
from twopc.sinks.redis.mappings import IncrBy

if TYPE_CHECKING:
    from twopc.sinks.hbase.committer import HBaseCommitter
    from twopc.sinks.redis.client import Call


@pytest.fixture
def without_table(monkeypatch: pytest.MonkeyPatch) -> HBaseCommitter:
    def fail(*_: object) -> None:
        raise AbsentTableError("there is no table 'twopc'")

    monkeypatch.setattr(HBaseClient, "execute_one", fail)
    return HBaseSink(name="s", zookeeper="h:1", table="t", mapping=Put("{id}", {"d:v": "v"})).create_committer()


def test_hbase_has_no_record_before_the_first_driver_creates_the_table(without_table: HBaseCommitter) -> None:
    assert without_table.binding() == {"id": ""}


def test_hbase_reports_a_dropped_table_and_blames_no_other_driver(without_table: HBaseCommitter) -> None:
    without_table._run = "run"  # it has acquired the sink
    with pytest.raises(ConfigurationError, match="there is no table 'twopc'"):
        without_table.has_newer_decision({})


class Recorded:
    """A step of Redis that keeps the call."""

    def execute_one(self, call: Call) -> int:
        self.call = call
        return 1


OWNED = control.Control(id="i", run="r", query_id="q", driver_epoch=1, version=7)


@pytest.mark.parametrize(
    ("changed", "in_a_cluster", "durable"),
    [
        (control.decided(OWNED, 7), False, False),
        (control.decided(OWNED, 7), True, True),
        (control.reserved(OWNED, above=0), False, True),
    ],
)
def test_redis_waits_for_the_record_to_be_durable_unless_the_proof_of_the_rows_has_already_waited(
    *, changed: control.Control, in_a_cluster: bool, durable: bool
) -> None:
    sink = RedisSink(name="s", url="redis://h", mapping=IncrBy("n:{id}"), cluster=in_a_cluster)
    step: Any = Recorded()
    assert sink.create_committer().swap(step, control.encode(OWNED), control.encode(changed))
    assert step.call.durable is durable


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (NoPermissionError("NOPERM no right to run 'evalsha'"), ConfigurationError),
        (NoAnswerError("too late"), UnavailableError),
    ],
)
def test_a_redis_server_that_refuses_to_show_a_slice_is_not_reported_as_silent(
    monkeypatch: pytest.MonkeyPatch, error: Exception, kind: type[TwoPhaseCommitError]
) -> None:
    monkeypatch.setattr(RedisClient, "execute_one", lambda *_: control.encode(OWNED))
    monkeypatch.setattr(RedisClient, "execute", lambda *_: [error])
    committer = RedisSink(name="s", url="redis://h", mapping=IncrBy("n:{id}")).create_committer()
    handle = RedisHandle(uuid="u", driver_epoch=1, rows=1, checksum="", groups=((-1, 1, 1),))
    with pytest.raises(kind, match=str(error)) as raised:
        committer.observe([handle], {"base": 7, "after": 0})
    assert type(raised.value) is kind
