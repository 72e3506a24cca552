"""Brokers that respond differently from Kafka: each difference has its own line. One response of a real broker is changed."""

from __future__ import annotations

import uuid
from typing import TYPE_CHECKING, Any

import pytest

from twopc.integration.preflight.command import run_preflight
from twopc.integration.preflight.findings import Result
from twopc.integration.preflight.trial import Trial
from twopc.sinks.kafka import KafkaSink
from twopc.sinks.kafka.reports import NONE, Listing
from twopc.sinks.kafka.transactions import TransactionClient

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.live.services import KafkaService


def answer_none_always(monkeypatch: pytest.MonkeyPatch) -> None:
    really = TransactionClient.end

    def end(client: TransactionClient, identities: Any, *, commit: bool = True) -> dict[str, str]:
        return dict.fromkeys(really(client, identities, commit=commit), NONE)

    monkeypatch.setattr(TransactionClient, "end", end)


def refuse_a_second_commit(monkeypatch: pytest.MonkeyPatch) -> None:
    really, ended = TransactionClient.end, set[str]()

    def end(client: TransactionClient, identities: Any, *, commit: bool = True) -> dict[str, str]:
        answers = really(client, identities, commit=commit)
        before = {tid for tid in answers if tid in ended}
        ended.update(tid for tid, answer in answers.items() if answer == NONE)
        return {tid: "InvalidTxnStateError" if tid in before else answer for tid, answer in answers.items()}

    monkeypatch.setattr(TransactionClient, "end", end)


def list_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(TransactionClient, "list_open", lambda *_: Listing((), complete=True))


def show_all(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Trial, "is_visible", lambda *_: True)


def show_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Trial, "is_visible", lambda *_: False)


def fence_no_driver(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Trial, "another_driver", lambda trial: trial.log)


def delete_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Trial, "delete", lambda *_, **__: None)


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        (answer_none_always, {"sweep": Result.FAIL, "abort": Result.FAIL}),
        (fence_no_driver, {"fencing": Result.FAIL}),
        pytest.param(refuse_a_second_commit, {"second commit": Result.WARN}, marks=pytest.mark.whole),
        pytest.param(list_nothing, {"list": Result.FAIL}, marks=pytest.mark.whole),
        pytest.param(
            show_all, {"isolation": Result.FAIL, "sweep": Result.FAIL, "abort": Result.FAIL}, marks=pytest.mark.whole
        ),
        (show_none, {"commit": Result.FAIL, "not tried": Result.WARN}),
        pytest.param(delete_nothing, {"deletion": Result.WARN}, marks=pytest.mark.whole),
    ],
)
def test_each_difference_from_kafka_is_reported(
    kafka: KafkaService,
    monkeypatch: pytest.MonkeyPatch,
    change: Callable[[pytest.MonkeyPatch], None],
    expected: dict[str, Result],
) -> None:
    sink = KafkaSink(name=f"p{uuid.uuid4().hex[:10]}", bootstrap_servers=kafka.bootstrap_servers, timeout_ms=60_000)
    change(monkeypatch)
    report = run_preflight(sink, [])
    tried = {one.check: one for one in report.findings if one.subject == "the trial" and one.result is not Result.PASS}
    assert {check: one.result for check, one in tried.items()} == expected
    assert all(one.fix for one in tried.values())
