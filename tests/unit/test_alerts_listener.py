"""Alerts in the driver: they are sent, and no receiver can harm the query."""

from __future__ import annotations

import logging
import os
import queue
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from pyspark import cloudpickle

from tests.unit.history_support import T0, ended, failed, write
from twopc.errors import BadRecordError, ConfigurationError
from twopc.events import Triggered
from twopc.integration.alerts import Alert, Alerts, ConsecutiveFailures, NoCheckpoint, to_log
from twopc.integration.alerts import listener as module
from twopc.integration.alerts.channels import Post, Webhook

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

    from tests.unit.fake_sink import Cluster
    from twopc.integration.alerts.rules import Rule
    from twopc.listeners import Listener

BROKEN = ConsecutiveFailures("broken", 2)
WAIT_S = 60.0


class Clock:
    def __init__(self) -> None:
        self.now = T0 / 1000

    def __call__(self) -> float:
        return self.now


def _alerts(told: queue.Queue[Alert], *rules: Rule, at: Path | None = None, clock: Clock | None = None) -> Alerts:
    return Alerts(rules, [told.put], name="orders", checkpoint_location=at, clock=clock or Clock())


def _fail(cluster: Cluster, times: int, listeners: Sequence[Listener]) -> None:
    for _ in range(times):
        query = cluster.start(listeners=listeners)
        query.engine.failures = [BadRecordError("row 7")]
        with pytest.raises(BadRecordError):
            query.run(0)


def test_a_query_that_fails_repeatedly_is_reported_once_and_so_is_its_recovery(cluster: Cluster) -> None:
    told: queue.Queue[Alert] = queue.Queue()
    alerts = _alerts(told, BROKEN)
    _fail(cluster, 3, [alerts])
    cluster.start(listeners=[alerts]).run(0)
    first, second = told.get(timeout=WAIT_S), told.get(timeout=WAIT_S)
    assert [(one.rule, one.status, one.query) for one in (first, second)] == [
        ("broken", "firing", "orders"),
        ("broken", "over", "orders"),
    ]
    assert "BadRecordError: row 7" in first.text
    alerts._flush(time.monotonic() + WAIT_S)
    assert told.empty()


def test_a_copy_made_by_pickle_watches_as_the_original_would(cluster: Cluster, tmp_path: Path) -> None:
    """Under Spark Connect, the client makes the object, and a copy watches the query on the server."""
    alerts = Alerts([BROKEN], [to_log], name="orders", checkpoint_location=tmp_path)
    copy = cloudpickle.loads(cloudpickle.dumps(alerts))  # type: ignore[no-untyped-call]
    assert (copy._rules, copy._name, copy._checkpoint) == (alerts._rules, "orders", tmp_path)
    webhook = Alerts([BROKEN], [Webhook("http://127.0.0.1/x", {"Authorization": "secret"})])
    (channel,) = cloudpickle.loads(cloudpickle.dumps(webhook))._channels  # type: ignore[no-untyped-call]
    assert (channel.url, channel.headers) == ("http://127.0.0.1/x", {"Authorization": "secret"})
    to_queue: queue.Queue[Alert] = queue.Queue()
    copy._posts = [Post(to_queue.put, copy._look_again)]
    _fail(cluster, 2, [copy])
    assert to_queue.get(timeout=WAIT_S).rule == "broken"


def test_elapsed_time_is_noticed_without_a_checkpoint(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("twopc.integration.alerts.listener._TICK_S", 0.05)
    told: queue.Queue[Alert] = queue.Queue()
    clock = Clock()
    alerts = _alerts(told, NoCheckpoint("stalled", for_s=60), clock=clock)
    alerts.triggered(Triggered(0))
    clock.now += 61
    assert told.get(timeout=WAIT_S).rule == "stalled"


def test_a_query_closed_normally_raises_no_alert() -> None:
    told: queue.Queue[Alert] = queue.Queue()
    clock = Clock()
    alerts = _alerts(told, NoCheckpoint("stalled", for_s=60), clock=clock)
    alerts.triggered(Triggered(0))
    alerts.ended(ended(0))
    alerts.close()
    alerts._flush(time.monotonic() + WAIT_S)
    clock.now += 3_600
    alerts.close()  # makes the thread look at the clock
    alerts._flush(time.monotonic() + WAIT_S)
    alerts.triggered(Triggered(1))
    alerts._flush(time.monotonic() + WAIT_S)
    assert told.empty()
    clock.now += 61
    alerts.close()  # makes the thread look at the clock
    assert told.get(timeout=WAIT_S).rule == "stalled"


def test_a_checkpoint_after_a_long_pause_in_the_source_is_not_late_when_it_begins(tmp_path: Path) -> None:
    told: queue.Queue[Alert] = queue.Queue()
    clock = Clock()
    checkpoint = write(tmp_path / "checkpoint", [ended(0)])
    clock.now += 3_600
    alerts = _alerts(told, NoCheckpoint("stalled", for_s=60, is_of_planned=True), at=checkpoint, clock=clock)
    alerts.triggered(Triggered(1))
    alerts.ended(ended(1, triggered_ms=int(clock.now * 1000)))
    alerts._flush(time.monotonic() + WAIT_S)
    clock.now += 3_600
    alerts.triggered(Triggered(2))
    alerts._flush(time.monotonic() + WAIT_S)
    assert told.empty()
    clock.now += 50
    alerts.ended(failed(2, "RetriableError", "away", triggered_ms=int(clock.now * 1000)))
    alerts.triggered(Triggered(2))
    alerts._flush(time.monotonic() + WAIT_S)
    assert told.empty()
    clock.now += 11
    alerts.close()  # makes the thread look at the clock
    assert told.get(timeout=WAIT_S).rule == "stalled", "the time should count from the first attempt"


def test_a_query_that_failed_and_was_closed_still_raises_the_stalled_alert() -> None:
    told: queue.Queue[Alert] = queue.Queue()
    clock = Clock()
    alerts = _alerts(told, NoCheckpoint("stalled", for_s=60), clock=clock)
    alerts.triggered(Triggered(0))
    alerts.ended(failed(0, "FatalError", "no"))
    alerts.close()
    alerts._flush(time.monotonic() + WAIT_S)
    clock.now += 3_600
    alerts.close()  # makes the thread look at the clock
    assert told.get(timeout=WAIT_S).rule == "stalled"


def test_no_thread_watches_a_query_closed_normally() -> None:
    """Neither its thread nor a channel's is left, nor any call at the end of the process. A later run is watched again."""
    before = threading.enumerate()
    told: queue.Queue[Alert] = queue.Queue()
    alerts = _alerts(told, BROKEN)
    for _ in range(2):
        alerts.triggered(Triggered(0))
        alerts.ended(failed(0, "FatalError", "no"))
        alerts.triggered(Triggered(0))
        alerts.ended(failed(0, "FatalError", "no"))
        assert told.get(timeout=WAIT_S).status == "firing"
        alerts.triggered(Triggered(0))
        assert len(threading.enumerate()) > len(before)
        alerts.ended(ended(0))
        alerts.close()
        assert told.get(timeout=WAIT_S).status == "over"
        _wait_for_end_of_others(before)
        assert alerts not in module._watching
    alerts.close()
    alerts._flush(time.monotonic() + WAIT_S)  # there is nothing to wait for


def test_a_query_is_watched_until_its_last_alert_has_been_delivered() -> None:
    """The end of the process therefore waits for it. Caught mutation: the watching thread ends with the query."""
    before = threading.enumerate()
    asked, free = threading.Event(), threading.Event()

    def channel(_: Alert) -> None:
        asked.set()
        free.wait()

    alerts = Alerts([ConsecutiveFailures("broken", 1)], [channel])
    alerts.triggered(Triggered(0))
    alerts.ended(failed(0, "FatalError", "no"))
    assert asked.wait(WAIT_S)
    alerts.triggered(Triggered(0))
    alerts.ended(ended(0))
    alerts.close()
    alerts._happened.join()
    assert alerts in module._watching
    free.set()
    _wait_for_end_of_others(before)
    assert alerts not in module._watching


def test_a_query_that_failed_raises_no_alert_once_another_object_watches_its_next_run() -> None:
    """Some users make new objects for each run. A run of another query changes nothing."""
    told: queue.Queue[Alert] = queue.Queue()
    clock = Clock()
    before = threading.enumerate()
    previous = _alerts(told, NoCheckpoint("stalled", for_s=60), clock=clock)
    previous.triggered(Triggered(0, "query", "run 1"))
    previous.ended(failed(0, "FatalError", "no"))
    previous.close()
    other, beside, next_one = (_alerts(queue.Queue(), BROKEN) for _ in range(3))
    other.triggered(Triggered(0, "another query", "run 2"))
    beside.triggered(Triggered(0, "query", "run 1"))
    previous._flush(time.monotonic() + WAIT_S)
    assert previous in module._watching
    next_one.triggered(Triggered(0, "query", "run 3"))
    previous._flush(time.monotonic() + WAIT_S)
    clock.now += 3_600
    previous.close()  # makes the thread look at the clock
    for one in (other, next_one):
        one.ended(ended(0))
        one.close()
    _wait_for_end_of_others(before)
    assert told.empty()


def _wait_for_end_of_others(threads: Collection[threading.Thread]) -> None:
    for thread in set(threading.enumerate()) - set(threads):
        thread.join(WAIT_S)
        assert not thread.is_alive()


def test_a_checkpoint_planned_by_a_dead_process_counts_from_the_time_when_it_was_planned(tmp_path: Path) -> None:
    told: queue.Queue[Alert] = queue.Queue()
    checkpoint = write(tmp_path / "checkpoint", [ended(0)])
    (checkpoint / "offsets").mkdir()
    (checkpoint / "commits").mkdir()
    for name in ("offsets/0", "commits/0", "offsets/1"):
        (checkpoint / name).touch()
        os.utime(checkpoint / name, (T0 / 1000, T0 / 1000))
    clock = Clock()
    clock.now += 3_600
    alerts = _alerts(told, NoCheckpoint("stalled", for_s=60, is_of_planned=True), at=checkpoint, clock=clock)
    alerts.triggered(Triggered(1))
    assert told.get(timeout=WAIT_S).rule == "stalled"


def test_failures_of_earlier_processes_count_and_are_reported_once(tmp_path: Path) -> None:
    checkpoint = write(tmp_path / "checkpoint", [failed(0, "FatalError", "no", triggered_ms=T0 - 9_000)])
    told: queue.Queue[Alert] = queue.Queue()
    first = _alerts(told, BROKEN, at=checkpoint)
    first.triggered(Triggered(0))
    first.ended(failed(0, "FatalError", "no"))
    assert told.get(timeout=WAIT_S).status == "firing"
    first._flush(time.monotonic() + WAIT_S)
    write(checkpoint, [failed(0, "FatalError", "no", triggered_ms=T0 - 9_000 + n) for n in range(2)])
    second = _alerts(told, BROKEN, at=checkpoint)
    second.triggered(Triggered(0))
    second.ended(failed(0, "FatalError", "no"))
    second._flush(time.monotonic() + WAIT_S)
    assert told.empty()
    second.ended(ended(0))
    assert told.get(timeout=WAIT_S).status == "over"


def test_checkpoints_of_this_process_in_the_history_count_once(tmp_path: Path) -> None:
    mine = failed(0, "FatalError", "no")
    checkpoint = write(
        tmp_path / "checkpoint", [mine]
    )  # by the time the thread reads the file, the listener has received this checkpoint
    told: queue.Queue[Alert] = queue.Queue()
    alerts = _alerts(told, BROKEN, at=checkpoint)
    alerts.triggered(Triggered(0))
    alerts.ended(mine)
    alerts._flush(time.monotonic() + WAIT_S)
    assert told.empty()


def test_a_hanging_channel_delays_neither_the_query_nor_the_other_channels_nor_the_shutdown(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "_LAST_S", 0.1)
    told: queue.Queue[Alert] = queue.Queue()
    free = threading.Event()
    alerts = Alerts([BROKEN], [lambda _: free.wait(), told.put])
    _fail(cluster, 2, [alerts])
    assert told.get(timeout=WAIT_S).status == "firing"
    for batch in range(3):
        cluster.start(listeners=[alerts]).run(batch)
    assert told.get(timeout=WAIT_S).status == "over"
    module._flush_all()
    free.set()


def test_a_channel_that_raises_is_logged_and_the_next_alert_is_sent(
    cluster: Cluster, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING, "twopc.alerts")
    told: queue.Queue[Alert] = queue.Queue()

    def channel(alert: Alert) -> None:
        if alert.status == "firing":
            raise RuntimeError("no pager")
        told.put(alert)

    alerts = Alerts([BROKEN], [channel])
    _fail(cluster, 2, [alerts])
    cluster.start(listeners=[alerts]).run(0)
    assert told.get(timeout=WAIT_S).status == "over"
    assert "an alert was not delivered: no pager" in caplog.text


def test_an_alert_becomes_a_warning_with_its_fields(caplog: pytest.LogCaptureFixture) -> None:
    to_log(Alert(rule="r", status="over", query="q", at_ms=2, since_ms=1, text="Over.", runbook="docs/x.md"))
    (record,) = caplog.records
    assert (record.levelname, record.name, record.__dict__["rule"]) == ("WARNING", "twopc.alerts", "r")


def test_rules_with_the_same_name_are_refused() -> None:
    with pytest.raises(ConfigurationError, match="2 rules are called broken"):
        Alerts([BROKEN, BROKEN])


def test_a_checkpoint_that_is_not_local_is_refused_and_a_file_url_is_accepted(tmp_path: Path) -> None:
    with pytest.raises(
        ConfigurationError, match=r"hdfs://n/c'.*: the location is not a local directory. Omit checkpoint_location"
    ):
        Alerts([BROKEN], checkpoint_location="hdfs://n/c")
    assert Alerts([BROKEN], checkpoint_location=f"file://{tmp_path}")._checkpoint == tmp_path


def test_a_process_that_ends_because_of_a_failure_reports_the_failure_first(tmp_path: Path) -> None:
    rules = tmp_path / "alerts.properties"
    rules.write_text("consecutive.count=1")
    code = f"""
from twopc.integration.alerts import Alerts
from tests.unit.history_support import failed
from twopc.events import Triggered
alerts = Alerts.from_file({str(rules)!r}, name="orders")
alerts.triggered(Triggered(0))
alerts.ended(failed(0, "FatalError", "no"))
alerts.close()
raise SystemExit(3)
"""
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=Path(__file__).parents[2], capture_output=True, text=True, check=False
    )
    assert done.returncode == 3
    assert "firing consecutive, query orders: 1 checkpoint failed in a row." in done.stderr
