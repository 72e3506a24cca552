"""Unknown and contradictory arguments of ``exactly_once`` are rejected by name."""

from __future__ import annotations

import threading
from dataclasses import replace
from typing import Any

import pytest

from twopc.errors import BadRecordError, ConfigurationError
from twopc.integration.spark import exactly_once
from twopc.sinks.kafka import KafkaSink


def test_an_unknown_setting_is_named_with_the_known_ones() -> None:
    sink = KafkaSink(name="s", bootstrap_servers="localhost:1", topic="t")
    with pytest.raises(
        ConfigurationError, match=r"exactly_once\(stagging=…\): no such setting; the settings are .*max_attempts"
    ):
        exactly_once(sink, checkpoint_location="/x", stagging=True)


@pytest.mark.parametrize(
    ("settings", "named"),
    [
        ({"on_bad_record": "ignore"}, "on_bad_record='ignore'"),
        ({"on_bad_record": "dead_letter"}, "or neither"),
        ({"dead_letter": KafkaSink(name="letters", bootstrap_servers="x:1", topic="t")}, "or neither"),
        (
            {"on_bad_record": "dead_letter", "dead_letter": KafkaSink(name="letters", bootstrap_servers="x:1")},
            "KafkaSink with a topic",
        ),
        (
            {"on_bad_record": "dead_letter", "dead_letter": KafkaSink(name="s", bootstrap_servers="x:1", topic="t")},
            "two sinks have the same name",
        ),
        ({"select": {"other": ["1 AS value"]}}, "no sink is called 'other'"),
        ({"select": {"s": "1 AS value"}}, "give a list of SQL expressions"),
        ({"select": {"s": []}}, "give a list of SQL expressions"),
        ({"abandon_batch": "17"}, "abandon_batch='17'"),
        ({"history": "yes"}, "history='yes'"),
        *(
            ({"num_retained": wrong}, rf"num_retained={wrong!r}\): give a number of decisions from 1 on")
            for wrong in (0, -1, True, 2.5, "10")
        ),
        *(({"direct": wrong}, "give one of 'auto', 'always', 'never'") for wrong in ("sometimes", None, True)),
        *(
            ({"direct_max_bytes": wrong}, r"direct_max_bytes=.*\): give a number of bytes from 1024 to")
            for wrong in (0, -1, True, None, 1e6, "10 MB", 10**40)
        ),
        *(
            ({"max_attempts": wrong}, rf"max_attempts={wrong!r}\): give a number of attempts from 1 on")
            for wrong in (0, -1, True, None, "3")
        ),
        *(
            ({"prepare_timeout_ms": wrong}, rf"prepare_timeout_ms={wrong!r}\): give a number of milliseconds above 0")
            for wrong in (0, -5, True, "1s", float("nan"), float("inf"))
        ),
        ({"listeners": [print]}, "inherit from twopc.Listener"),
        ({"resume_at_batch": "17"}, "resume_at_batch='17'"),
    ],
)
def test_contradictory_settings_are_refused_by_name(settings: dict[str, Any], named: str) -> None:
    sink = KafkaSink(name="s", bootstrap_servers="x:1", topic="t")
    with pytest.raises(ConfigurationError, match=named):
        exactly_once(sink, checkpoint_location="/nowhere", **settings)


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


def test_a_spark_that_was_not_proven_is_warned_about(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    sink = KafkaSink(name="s", bootstrap_servers="x:1", topic="t")
    exactly_once(sink, checkpoint_location="/x")
    assert caplog.text == ""
    monkeypatch.setattr("pyspark.__version__", "4.20.1")
    exactly_once(sink, checkpoint_location="/x")
    assert "Spark 4.20.1" in caplog.text and "4.2, 4.3" in caplog.text


def test_a_ledger_of_any_name_is_known_to_every_sink_of_the_query() -> None:
    """A row in it would be read as a damaged decision, at every start of the other sink."""
    audit = KafkaSink(name="audit", bootstrap_servers="x:1", topic="t", ledger_topic="decisions")
    by_row = KafkaSink(name="s", bootstrap_servers="x:1")
    letters = KafkaSink(name="letters", bootstrap_servers="x:1", topic="bad", ledger_topic="letters-decisions")
    each = exactly_once(by_row, audit, checkpoint_location="/x", on_bad_record="dead_letter", dead_letter=letters)
    for ledger in ("decisions", "letters-decisions"):
        by_row.require_topics([ledger])
        with pytest.raises(BadRecordError, match=f"'{ledger}' in the column 'topic' is a ledger"):
            each._sinks[0].require_topics([ledger])  # type: ignore[attr-defined]
    with pytest.raises(ConfigurationError, match=r"topic='decisions'\) is a ledger"):
        exactly_once(audit, replace(by_row, topic="decisions"), checkpoint_location="/x")
