"""The listeners that come with the toolkit: metrics and a log."""

from __future__ import annotations

import logging
import pickle
import socket
import sys
import time
import urllib.request
from typing import TYPE_CHECKING, Any

import pytest

from tests.unit.history_support import ended, failed
from twopc.errors import BadRecordError, CommitBlockedError, DecisionInDoubtError, InDoubtError, UnavailableError
from twopc.events import Phase, Triggered
from twopc.integration.history import CheckpointLog, PrometheusMetrics
from twopc.integration.services.ports import free_ports
from twopc.progress import Cause

if TYPE_CHECKING:
    from tests.unit.fake_sink import Cluster
    from twopc.progress import Checkpoint


def test_the_log_has_a_record_with_fields_for_each_checkpoint(
    cluster: Cluster, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "twopc.checkpoints")
    query = cluster.start(listeners=[CheckpointLog()])
    query.run(0)
    query.engine.failures = [BadRecordError("row 7")]
    with pytest.raises(BadRecordError):
        query.run(1)
    good, bad = [record for record in caplog.records if record.name == "twopc.checkpoints"]
    assert (good.levelname, good.__dict__["batch_id"], good.__dict__["outcome"]) == ("INFO", 0, "completed")
    assert set(good.__dict__["transactions"]) == set(cluster.store.transactions)
    assert (bad.levelname, bad.__dict__["batch_id"], bad.__dict__["outcome"]) == ("ERROR", 1, "failed")
    assert "BadRecordError: row 7" in bad.getMessage()


def test_the_error_for_metrics_without_the_extra_identifies_that_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "prometheus_client", None)
    with pytest.raises(
        ModuleNotFoundError, match=r"PrometheusMetrics needs the .* package, .*pip install 'spark-twopc\[metrics\]'"
    ):
        PrometheusMetrics("q")


@pytest.fixture
def registry() -> Any:
    return pytest.importorskip("prometheus_client").CollectorRegistry()


def served_on(port: int) -> str:
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=30) as response:
        text: str = response.read().decode()
        return text


def test_metrics_are_served_as_soon_as_the_first_checkpoint_begins(monkeypatch: pytest.MonkeyPatch) -> None:
    """Under Spark Connect, the client makes the object, and a copy on the server serves the metrics."""
    prometheus = pytest.importorskip("prometheus_client")
    monkeypatch.setattr(prometheus, "REGISTRY", prometheus.CollectorRegistry())
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        metrics = PrometheusMetrics("q", port=port)  # opens no port
        with pytest.raises(
            OSError, match=rf"port {port} on 127\.0\.0\.1 cannot be opened .*, so no metrics are served"
        ):
            metrics.triggered(Triggered(0))
    monkeypatch.setattr(prometheus, "REGISTRY", prometheus.CollectorRegistry())  # as in another process
    copy = pickle.loads(pickle.dumps(metrics))  # noqa: S301 - the bytes are our own
    for batch_id in range(2):
        copy.triggered(Triggered(batch_id))
        copy.ended(ended(batch_id))
    assert 'twopc_checkpoints_total{outcome="completed",query="q"} 2.0' in served_on(port)


def test_queries_of_one_process_share_the_registry_and_a_port(registry: Any) -> None:
    """A registry rejects a second metric of the same name, and a port a second server."""
    [port] = free_ports(1)
    for name in ("orders", "audit"):
        metrics = PrometheusMetrics(name, port=port, registry=registry)
        metrics.triggered(Triggered(0))
        metrics.ended(ended(0))
    text = served_on(port)
    for name in ("orders", "audit"):
        assert f'twopc_checkpoints_total{{outcome="completed",query="{name}"}} 1.0' in text


def test_a_query_that_was_built_anew_in_the_same_process_continues_its_metrics(registry: Any) -> None:
    [port] = free_ports(1)
    before = PrometheusMetrics("q", port=port, registry=registry)
    before.triggered(Triggered(0))
    before.ended(failed(0, CommitBlockedError.__name__, "unproven"))
    before.close()
    again = PrometheusMetrics("q", port=port, registry=registry)
    assert 'twopc_in_doubt{query="q"} 1.0' in served_on(port)
    again.triggered(Triggered(0))
    again.ended(ended(0))
    text = served_on(port)
    assert 'twopc_in_doubt{query="q"} 0.0' in text
    for outcome in ("completed", "failed"):
        assert f'twopc_checkpoints_total{{outcome="{outcome}",query="q"}} 1.0' in text


def test_metrics_that_the_user_has_unregistered_are_exported_again_for_the_next_query(registry: Any) -> None:
    before = PrometheusMetrics("q", registry=registry)
    for collector in set(registry._names_to_collectors.values()):
        registry.unregister(collector)
    after = PrometheusMetrics("r", registry=registry)
    for metrics, query in ((before, "q"), (after, "r")):
        metrics.triggered(Triggered(0))
        metrics.ended(ended(0))
        assert registry.get_sample_value("twopc_checkpoints_total", {"query": query, "outcome": "completed"}) == 1


def test_two_queries_with_one_name_cause_one_warning(registry: Any, caplog: pytest.LogCaptureFixture) -> None:
    """A query that is built anew while the last checkpoint of its former run ends causes none."""
    one, other = PrometheusMetrics("q", registry=registry), PrometheusMetrics("r", registry=registry)
    one.triggered(Triggered(0))
    other.triggered(Triggered(0))
    again = PrometheusMetrics("q", registry=registry)
    one.entered(Phase("commit", attempt_began=time.monotonic() - 300, transactions_live_ms=600_000.0))
    assert registry.get_sample_value("twopc_transaction_age_ratio", {"query": "q"}) >= 0.5
    one.ended(ended(0))
    again.triggered(Triggered(1))
    assert not caplog.records
    for batch in (2, 3):
        one.triggered(Triggered(batch))
        again.triggered(Triggered(batch))
    assert [record.levelname for record in caplog.records] == ["WARNING"]
    assert "under the name 'q' of PrometheusMetrics" in caplog.text


def test_an_earlier_run_that_is_released_late_does_not_remove_the_state_of_the_present_run(registry: Any) -> None:
    """Without close(), a run is released only when the next run begins."""
    earlier, present = PrometheusMetrics("q", registry=registry), PrometheusMetrics("q", registry=registry)
    earlier.triggered(Triggered(0))
    earlier.ended(ended(0))
    present.triggered(Triggered(1))
    present.entered(Phase("commit", attempt_began=time.monotonic() - 300, transactions_live_ms=600_000.0))
    earlier.close()
    assert registry.get_sample_value("twopc_transaction_age_ratio", {"query": "q"}) >= 0.5
    assert registry.get_sample_value("twopc_last_completed_batch", {"query": "q"}) == 0


def test_a_port_that_serves_another_registry_is_refused_with_advice(registry: Any) -> None:
    [port] = free_ports(1)
    PrometheusMetrics("q", port=port, registry=registry).triggered(Triggered(0))
    other = PrometheusMetrics("other", port=port, registry=type(registry)())
    with pytest.raises(OSError, match=rf"port {port} on 127\.0\.0\.1 already serves another registry .* Pass the same"):
        other.triggered(Triggered(0))


#: The metrics that describe a running query.
STATE = (
    "checkpoint_age_seconds",
    "transaction_age_ratio",
    "in_doubt",
    "last_completed_batch",
    "last_completed_timestamp_seconds",
)


def test_a_query_that_has_ended_leaves_its_totals_and_no_state(registry: Any) -> None:
    """A state of an ended query would go out of date, and would raise alerts until the process ends."""
    ends, goes_on = PrometheusMetrics("ends", registry=registry), PrometheusMetrics("goes on", registry=registry)

    def state_of(query: str) -> set[str]:
        return {one for one in STATE if registry.get_sample_value(f"twopc_{one}", {"query": query}) is not None}

    for metrics in (ends, goes_on):
        metrics.triggered(Triggered(0))
        metrics.ended(ended(0))
    ends.close()
    ends.close()
    assert (state_of("ends"), state_of("goes on")) == (set(), set(STATE))
    assert registry.get_sample_value("twopc_rows_total", {"query": "ends"}) == 40_000
    ends.triggered(Triggered(1))  # it was closed between two batches
    assert state_of("ends") == {"checkpoint_age_seconds", "transaction_age_ratio"}
    ends.ended(ended(1))
    assert state_of("ends") == set(STATE)
    assert registry.get_sample_value("twopc_rows_total", {"query": "ends"}) == 80_000


def test_the_state_of_a_query_that_has_failed_stays_until_it_completes_a_checkpoint(registry: Any) -> None:
    """Prometheus may not have scraped it yet, and its alert must not end."""
    metrics = PrometheusMetrics("q", registry=registry)
    for checkpoint in (failed(5, InDoubtError.__name__, "unproven"), failed(6, UnavailableError.__name__, "away")):
        metrics.ended(checkpoint)
        metrics.close()
        assert registry.get_sample_value("twopc_in_doubt", {"query": "q"}) == 1
    metrics.ended(ended(5))
    metrics.close()
    assert registry.get_sample_value("twopc_in_doubt", {"query": "q"}) is None


def test_metrics_count_outcomes_rows_and_durations_by_phase(registry: Any) -> None:
    metrics = PrometheusMetrics("q", registry=registry)

    def value(name: str, **labels: str) -> float | None:
        found: float | None = registry.get_sample_value(f"twopc_{name}", {"query": "q", **labels})
        return found

    assert value("checkpoints_total", outcome="expired") == 0
    tried = Cause(reason="declined", phase="prepare", error="RetriableError", message="away")
    metrics.ended(ended(3, failed_attempts=(tried,)))
    metrics.ended(ended(4))
    assert value("checkpoints_total", outcome="completed") == 2
    assert value("failed_attempts_total", reason="declined") == 1
    assert value("rows_total") == 80_000
    assert value("bytes_total") == 8_000_000
    assert value("phase_seconds_sum", phase="decide") == pytest.approx(0.06)
    assert value("checkpoint_seconds_count") == 2
    assert value("last_completed_batch") == 4
    assert value("orphans_ended_total") == 0
    assert value("in_doubt") == 0
    metrics.ended(failed(5, CommitBlockedError.__name__, "unproven"))
    assert (value("in_doubt"), value("checkpoints_total", outcome="failed"), value("rows_total")) == (1, 1, 80_000)
    late = Cause(reason="expired", phase="prepare", error="CheckpointExpiredError", message="late", late=2)
    metrics.ended(failed(6, "", "", cause=late, orphans_ended=3))
    metrics.ended(ended(6, orphans_ended=2))
    assert value("orphans_ended_total") == 5
    assert (value("late_acknowledgements_total"), value("checkpoints_total", outcome="expired")) == (2, 1)


@pytest.mark.parametrize("error", [InDoubtError, CommitBlockedError, DecisionInDoubtError])
def test_every_error_after_a_decision_sets_the_metric_in_doubt_until_a_checkpoint_is_completed(
    registry: Any, error: type[Exception]
) -> None:
    metrics = PrometheusMetrics("q", registry=registry)
    metrics.ended(failed(5, error.__name__, "unproven"))
    assert registry.get_sample_value("twopc_in_doubt", {"query": "q"}) == 1
    metrics.ended(ended(5))
    assert registry.get_sample_value("twopc_in_doubt", {"query": "q"}) == 0


def test_a_failure_before_the_decision_does_not_change_the_metric_in_doubt(registry: Any) -> None:
    metrics = PrometheusMetrics("q", registry=registry)

    def after(checkpoint: Checkpoint) -> float | None:
        metrics.ended(checkpoint)
        found: float | None = registry.get_sample_value("twopc_in_doubt", {"query": "q"})
        return found

    unavailable = UnavailableError.__name__
    assert after(failed(5, CommitBlockedError.__name__, "unproven")) == 1
    assert after(failed(5, unavailable, "the brokers are down")) == 1
    assert after(ended(5)) == 0
    assert after(failed(6, unavailable, "the brokers are down")) == 0


def test_a_new_process_does_not_say_whether_an_earlier_batch_is_in_doubt(registry: Any) -> None:
    """Without a sample, last_over_time still finds the sample of the process that stopped in doubt."""
    metrics = PrometheusMetrics("q", registry=registry)
    metrics.triggered(Triggered(5))
    assert registry.get_sample_value("twopc_in_doubt", {"query": "q"}) is None
    metrics.ended(failed(5, UnavailableError.__name__, "the brokers are down"))
    assert registry.get_sample_value("twopc_in_doubt", {"query": "q"}) is None


def test_the_age_of_open_transactions_is_available_while_they_are_open(registry: Any) -> None:
    metrics = PrometheusMetrics("q", registry=registry)

    def ratio() -> float:
        found: float = registry.get_sample_value("twopc_transaction_age_ratio", {"query": "q"})
        return found

    assert ratio() == 0
    metrics.triggered(Triggered(7))
    assert ratio() == 0
    began = time.monotonic() - 300
    metrics.entered(Phase("prepare", attempt_began=began, transactions_live_ms=600_000.0))
    assert 0.5 <= ratio() < 1
    assert registry.get_sample_value("twopc_checkpoint_age_seconds", {"query": "q"}) >= 0
    metrics.entered(Phase("finish", attempt_began=began, transactions_live_ms=600_000.0))
    assert ratio() == 0
    metrics.ended(ended(7))
    assert ratio() == 0
