"""How ``twopc preflight`` judges responses and findings."""

from __future__ import annotations

import re
from importlib import import_module
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, cast

import pytest
from confluent_kafka import KafkaError, KafkaException
from kafka.protocol.api_key import ApiKey

import twopc.sinks.kafka as kafka_sink
from twopc.errors import ConfigurationError, RetriableError, TwoPhaseCommitError
from twopc.integration.preflight import apis, checks, command, steps
from twopc.integration.preflight.findings import Finding, Result, failed
from twopc.integration.preflight.report import Report
from twopc.integration.preflight.stand_in import stand_in_for, topic_prefix
from twopc.sinks.kafka import KafkaSink
from twopc.sinks.kafka.handle import driver_epoch_of, driver_id, id_prefix, task_id

if TYPE_CHECKING:
    from collections.abc import Iterator

SINK = KafkaSink(name="orders", bootstrap_servers="b:1", options={"kafka.linger.ms": 7})
PASS = Finding("a", "x", Result.PASS, "fine")
WARN = Finding("b", "x", Result.WARN, "weak", "strengthen it")
FAIL = Finding("c", "x", Result.FAIL, "broken", "repair it")


def report(*findings: Finding) -> Report:
    return Report(
        sink="orders", bootstrap_servers="b:1", cluster="c", stand_in="s", topics=(), seconds=1.23, findings=findings
    )


@pytest.mark.parametrize(
    ("findings", "status"), [((PASS,), 0), ((PASS, WARN), 3), ((WARN, FAIL, PASS), 1)], ids=["pass", "warn", "fail"]
)
def test_the_worst_finding_determines_the_exit_status(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], findings: tuple[Finding, ...], status: int
) -> None:
    monkeypatch.setattr(command, "run_preflight", lambda *_: report(*findings))
    assert command.main(lambda: SINK, (), as_json=False) == status
    shown = capsys.readouterr().out
    assert all(one.why in shown and one.fix in shown for one in findings)


@pytest.mark.parametrize(
    ("error", "said"),
    [(RetriableError("no broker"), "no broker"), (KeyboardInterrupt(), "interrupted"), (OSError("x"), "unexpected")],
)
def test_a_preflight_that_could_not_check_has_a_separate_status(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], error: BaseException, said: str
) -> None:
    def fail(*_: object) -> Report:
        raise error

    monkeypatch.setattr(command, "run_preflight", fail)
    assert command.main(lambda: SINK, (), as_json=True) == 2
    printed = capsys.readouterr()
    assert not printed.out
    assert f"twopc preflight: {said}" in printed.err


def denied() -> ConfigurationError:
    error = ConfigurationError("e")
    error.__cause__ = KafkaException(KafkaError(KafkaError.TOPIC_AUTHORIZATION_FAILED))
    return error


@pytest.mark.parametrize(
    ("error", "fix"),
    [
        (denied(), "allow it"),
        (ConfigurationError("e"), "Follow the sink's error message"),
        (RetriableError("e"), "Run the preflight again"),
    ],
)
def test_the_suggested_fix_depends_on_the_errors_kind(error: TwoPhaseCommitError, fix: str) -> None:
    assert failed("a", "x", error, "allow it").fix.startswith(fix)


def test_the_stand_in_sink_shares_the_sinks_prefixes_but_none_of_its_names() -> None:
    made, other = stand_in_for(SINK), stand_in_for(SINK)
    assert made.name.startswith(id_prefix(SINK.name))
    assert made.ledger.startswith(SINK.ledger)
    assert made.topic == made.ledger
    assert made.client_options["linger.ms"] == "7"
    assert made.transaction_timeout_ms == 30_000
    assert len({made.name, other.name, SINK.name}) == len({made.ledger, other.ledger, SINK.ledger}) == 3
    assert driver_id(made.name) != driver_id(SINK.name)
    assert driver_epoch_of(driver_id(made.name)) is None
    assert driver_epoch_of(task_id(made.name, 0, "w", 0)) is None  # so that no sweep takes it for a task's id
    with pytest.raises(ConfigurationError):  # no user can give a sink such a name
        KafkaSink(name=made.name, bootstrap_servers="b:1")


@pytest.mark.parametrize(
    ("identity", "epoch"),
    [("orders.7.w.0", 7), ("orders.²..", None), ("x.٣.a.b", None), (f"x.{'9' * 5_000}.a.b", None), ("x..a.b", None)],
)
def test_another_programs_transactional_id_is_not_taken_for_a_tasks_id(identity: str, epoch: int | None) -> None:
    assert driver_epoch_of(identity) == epoch


@pytest.mark.parametrize("other", ["orders-eu", "orders2", "orders_audit", "orders"])
def test_the_acl_that_the_advice_names_covers_the_stand_ins_topic_and_no_ledger(other: str) -> None:
    prefix = topic_prefix(SINK)
    assert f"on topics with the prefix '{prefix}'" in steps.rights(SINK)
    assert str(stand_in_for(SINK).topic).startswith(prefix)
    assert not KafkaSink(name=other, bootstrap_servers="b:1").ledger.startswith(prefix)


def test_the_stand_in_of_a_sink_with_a_weaker_guarantee_still_tries_transactions() -> None:
    """Its driver decides in them, and the guarantee may be changed at any time."""
    made = stand_in_for(KafkaSink(name="s", bootstrap_servers="b:1", guarantee="AT_LEAST_ONCE"))
    assert made.guarantee == "EXACTLY_ONCE"


def target(*offers: dict[ApiKey, tuple[int, int]] | Exception) -> Any:
    def answer(offer: Any) -> Any:
        if isinstance(offer, Exception):
            return offer
        rows = [
            SimpleNamespace(api_key=int(api), min_version=low, max_version=high) for api, (low, high) in offer.items()
        ]
        return SimpleNamespace(error_code=0, api_keys=rows)

    answers = [answer(offer) for offer in offers]
    return SimpleNamespace(brokers=SimpleNamespace(nodes=list(range(1, len(answers) + 1)), send_all=lambda _: answers))


ALL = {need.api: (need.lowest, min(need.highest, need.lowest + 3)) for need in apis.NEEDS}


def test_brokers_that_support_every_request_pass() -> None:
    (found,) = apis.check_apis(target(ALL, ALL))
    assert (found.result, found.subject) == (Result.PASS, "broker 1, 2")


def test_every_request_that_the_sink_sends_itself_is_checked() -> None:
    """The other requests come from librdkafka."""
    imports = re.findall(
        r"^from (kafka\.protocol\.\w+) import (.+)$",
        "\n".join(source.read_text() for source in Path(kafka_sink.__file__).parent.glob("*.py")),
        re.MULTILINE,
    )
    sent = {
        getattr(import_module(module), name).API_KEY
        for module, names in imports
        for name in names.split(", ")
        if name.endswith("Request") and not module.endswith(".sasl")  # the client's own handshake
    }
    assert {ApiKey.EndTxn, ApiKey.DescribeProducers} < sent <= {need.api for need in apis.NEEDS}


def test_a_request_unsupported_by_one_broker_is_reported_with_its_use() -> None:
    without = {api: offer for api, offer in ALL.items() if api != ApiKey.ListTransactions}
    (found,) = apis.check_apis(target(ALL, without))
    assert (found.result, found.subject) == (Result.FAIL, "broker 2")
    assert "ListTransactions" in found.why
    assert "a dead driver" in found.why


def test_a_missing_request_that_the_sink_can_do_without_causes_a_warning() -> None:
    without = {api: offer for api, offer in ALL.items() if api != ApiKey.DeleteRecords}
    (found,) = apis.check_apis(target(without))
    assert (found.result, "truncating the ledger" in found.why) == (Result.WARN, True)


@pytest.mark.parametrize(
    ("api", "offer"), [(ApiKey.FindCoordinator, (0, 0)), (ApiKey.EndTxn, (4, 5)), (ApiKey.InitProducerId, (0, 2))]
)
def test_a_request_for_which_client_and_broker_share_no_version_is_reported(
    api: ApiKey, offer: tuple[int, int]
) -> None:
    (found,) = apis.check_apis(target({**ALL, api: offer}))
    assert found.result is Result.FAIL
    assert found.why.startswith(f"{api.name} (")
    assert f"accepts versions {offer[0]} to {offer[1]}" in found.why


def test_a_silent_broker_is_reported() -> None:
    silent, rest = apis.check_apis(target(RetriableError("x"), ALL))
    assert (silent.result, silent.subject, rest.result) == (Result.FAIL, "broker 1", Result.PASS)


def test_a_check_that_cannot_finish_is_reported_and_the_other_checks_still_run(monkeypatch: pytest.MonkeyPatch) -> None:
    def breaks(_: object) -> Iterator[Finding]:
        yield PASS
        raise RetriableError("no leader")

    monkeypatch.setattr(checks, "check_apis", lambda _: iter(()))
    monkeypatch.setattr(checks, "CHECKS", (checks.Check("one", breaks), checks.Check("two", lambda _: iter([WARN]))))
    first, broken, last = checks.findings_of(cast("Any", SimpleNamespace(sink=SINK)))
    assert (first, last) == (PASS, WARN)
    assert (broken.check, broken.result, broken.why) == ("one", Result.FAIL, "no leader")


def test_the_docs_list_every_step_of_the_trial_in_order() -> None:
    text = (Path(__file__).parents[2] / "docs" / "preflight.md").read_text()
    listed = re.findall(r"^\| `([a-z -]+)` \|", text, re.MULTILINE)
    names = [step.name for step in steps.STEPS]
    assert [name for name in listed if name in names] == names


def test_if_an_old_message_format_hides_transactions_the_suggested_fix_is_to_finish_the_upgrade() -> None:
    of_transactions = {ApiKey.InitProducerId, ApiKey.AddPartitionsToTxn, ApiKey.EndTxn}
    (first, *_) = apis.check_apis(target({api: offer for api, offer in ALL.items() if api not in of_transactions}))
    assert (first.result, "log.message.format.version" in first.fix) == (Result.FAIL, True)
    too_old = of_transactions | {ApiKey.DescribeTransactions, ApiKey.ListTransactions}
    (first, *_) = apis.check_apis(target({api: offer for api, offer in ALL.items() if api not in too_old}))
    assert "Use Kafka 3.0 or newer" in first.fix
