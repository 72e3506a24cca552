"""Unknown and contradictory arguments of ``exactly_once`` are rejected with an error that identifies them."""

from __future__ import annotations

import subprocess
import sys
import threading
from dataclasses import replace
from math import inf, nan
from pathlib import Path
from typing import Any

import pytest

from twopc import Abandon, AdoptQuery, CheckpointConfig, DriverUpTo, EndQuery, ResumeAt
from twopc.errors import BadRecordError, ConfigurationError
from twopc.integration.spark import exactly_once
from twopc.integration.spark.options import Options
from twopc.sinks.kafka import KafkaSink

ROOT = Path(__file__).parents[2]


def kafka_sink() -> KafkaSink:
    return KafkaSink(name="s", bootstrap_servers="x:1", topic="t")


def test_a_misspelled_setting_causes_an_error_in_the_editor_and_at_run_time(tmp_path: Path) -> None:
    script = tmp_path / "query.py"
    script.write_text(
        "from twopc import CheckpointConfig, KafkaSink, exactly_once\n"
        'sink = KafkaSink(name="s", bootstrap_servers="localhost:1", topic="t")\n'
        'exactly_once(sink, checkpoint_location="/x", stagging=True)\n'
        'exactly_once(sink, checkpoint_location="/x", write_by="executors")\n'
        'exactly_once(sink, checkpoint_location="/x", checkpoints=CheckpointConfig(timeout_s=5))\n'
        'exactly_once(sink, checkpoint_location="/x", write_by="tasks", checkpoints=CheckpointConfig(timeout_ms=5000))\n'
    )
    done = subprocess.run(
        [sys.executable, "-m", "mypy", "--strict", "--no-error-summary", str(script)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    lines = [line.split(": ", 1)[0].rpartition(":")[2] for line in done.stdout.splitlines() if ": error:" in line]
    assert lines == ["3", "4", "5"], done.stdout + done.stderr
    with pytest.raises(TypeError, match="stagging"):
        exactly_once(kafka_sink(), checkpoint_location="/x", stagging=True)  # type: ignore[call-arg]


@pytest.mark.parametrize(
    ("settings", "named"),
    [
        ({"dead_letter": KafkaSink(name="letters", bootstrap_servers="x:1")}, "KafkaSink with a topic"),
        ({"dead_letter": KafkaSink(name="s", bootstrap_servers="x:1", topic="t")}, "have the same name"),
        ({"dead_letter": "letters"}, "KafkaSink with a topic"),
        ({"select": {"other": ["1 AS value"]}}, "there is no sink called 'other'"),
        ({"select": {"s": "1 AS value"}}, "pass a list of SQL expressions"),
        ({"select": {"s": []}}, "pass a list of SQL expressions"),
        ({"select": {"s": 5}}, "pass a list of SQL expressions"),
        ({"select": ["1 AS value"]}, "pass a dictionary that maps each sink's name"),
        ({"select": "1 AS value"}, "pass a dictionary that maps each sink's name"),
        *(
            ({"write_by": wrong}, "pass one of 'auto', 'driver', 'tasks', or DriverUpTo")
            for wrong in ("sometimes", None, True, 1024)
        ),
        *(({"staging": wrong}, r"staging=.*: pass True .* or pass the path") for wrong in ("", None, 1)),
        ({"checkpoints": {"timeout_ms": 5}}, r"pass a CheckpointConfig\(…\)"),
        ({"listeners": [print]}, "inherit from twopc.Listener"),
        *(
            ({"override": wrong}, r"is not an override. Pass EndQuery\(id\)")
            for wrong in (None, "query", [AdoptQuery("a"), "b"], Abandon("17"), ResumeAt(2.0), EndQuery(17))  # type: ignore[arg-type]
        ),
        ({"override": Abandon(17, 5)}, "is not an override"),  # type: ignore[arg-type]
        ({"override": [AdoptQuery("a"), AdoptQuery("b")]}, "each kind of override only once"),
    ],
)
def test_invalid_settings_are_rejected_with_errors_that_identify_them(settings: dict[str, Any], named: str) -> None:
    with pytest.raises(ConfigurationError, match=named):
        exactly_once(kafka_sink(), checkpoint_location="/nowhere", **settings)


@pytest.mark.parametrize(
    ("name", "wrong", "valid"),
    [
        *(
            ("timeout_ms", wrong, "a positive number of milliseconds, or None")
            for wrong in (0, -5, True, "1s", nan, inf)
        ),
        *(("min_pause_ms", wrong, "0 or a positive number of milliseconds") for wrong in (-1, True, None, nan, inf)),
        *(("tolerable_failures", wrong, "0 or a positive number of checkpoints") for wrong in (-1, True, None, 1.0)),
        *(("max_attempts", wrong, "a positive number of attempts") for wrong in (0, -1, True, None, "3")),
        *(("num_retained", wrong, "a positive number of decisions, or None") for wrong in (0, -1, True, 2.5, "10")),
        ("history", "yes", "True, False or None"),
    ],
)
def test_an_invalid_checkpoint_setting_is_reported_together_with_the_valid_values(
    name: str, wrong: Any, valid: str
) -> None:
    with pytest.raises(ConfigurationError) as caught:
        CheckpointConfig(**{name: wrong})
    assert str(caught.value) == f"CheckpointConfig({name}={wrong!r}): {name} must be {valid}"


@pytest.mark.parametrize("wrong", [0, -1, True, None, 1e6, "10 MB", 10**40])
def test_an_invalid_limit_for_the_driver_is_reported(wrong: Any) -> None:
    with pytest.raises(ConfigurationError, match=r"DriverUpTo\(max_bytes=.*\): max_bytes must be between 1024 and"):
        DriverUpTo(wrong)


def test_a_function_that_cannot_reach_the_tasks_is_refused_at_once() -> None:
    lock = threading.Lock()
    options = {
        "kafka.security.protocol": "SASL_SSL",
        "kafka.sasl.mechanism": "OAUTHBEARER",
        "kafka.oauth_cb": lambda _: ("token", float(lock.locked())),
    }
    sink = KafkaSink(name="s", bootstrap_servers="x:1", topic="t", options=options)
    with pytest.raises(ConfigurationError, match=r"sink 's' cannot be sent to the tasks \(TypeError.*kafka\.oauth_cb"):
        exactly_once(sink, checkpoint_location="/nowhere")


def test_an_unproven_version_of_spark_causes_a_warning(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    sink = KafkaSink(name="s", bootstrap_servers="x:1", topic="t")
    exactly_once(sink, checkpoint_location="/x")
    assert "was not tested on" not in caplog.text
    monkeypatch.setattr("pyspark.__version__", "4.20.1")
    exactly_once(sink, checkpoint_location="/x")
    assert "Spark 4.20.1" in caplog.text and "4.2, 4.3" in caplog.text


def test_a_later_change_of_the_users_select_changes_no_columns() -> None:
    """Otherwise, a second call for a batch could make other rows, although it passes the same DataFrame."""
    expressions = ["id AS value"]
    select = {"s": expressions}
    options = Options(select=select)
    expressions[:] = ["n AS value"]
    select["s"] = ["n AS value"]
    assert options.select == {"s": ["id AS value"]}


def test_every_sink_of_the_query_recognizes_a_ledger_of_any_name() -> None:
    """A row in it would be read as a damaged decision, at every start of the other sink."""
    audit = KafkaSink(name="audit", bootstrap_servers="x:1", topic="t", ledger_topic="decisions")
    by_row = KafkaSink(name="s", bootstrap_servers="x:1")
    letters = KafkaSink(name="letters", bootstrap_servers="x:1", topic="bad", ledger_topic="letters-decisions")
    each = exactly_once(by_row, audit, checkpoint_location="/x", dead_letter=letters)
    for ledger in ("decisions", "letters-decisions"):
        by_row.require_topics([ledger])
        with pytest.raises(BadRecordError, match=f"'{ledger}' in the 'topic' column is a ledger"):
            each._sinks[0].require_topics([ledger])  # type: ignore[attr-defined]
    with pytest.raises(ConfigurationError, match=r"topic='decisions'\): this topic is a ledger"):
        exactly_once(audit, replace(by_row, topic="decisions"), checkpoint_location="/x")
