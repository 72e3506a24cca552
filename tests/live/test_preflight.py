"""``twopc preflight`` on a real broker: its findings on a healthy broker and on each fault. It changes nothing there."""

from __future__ import annotations

import dataclasses
import subprocess
import uuid
from typing import TYPE_CHECKING, Literal

import msgspec
import pyarrow as pa
import pytest
from confluent_kafka.admin import (
    AclOperation,
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    ResourceType,
)
from kafka.protocol.api_key import ApiKey

from tests.live.cluster_support import cluster, replicated_topic, three_brokers
from tests.live.command import COMMAND
from tests.live.pipeline import Tasks, create_topic, record_batch
from tests.live.rules.schedules import at, playing, until, work_of
from tests.live.security_support import USER, allow, documented_rights
from tests.tasks import attempt_of, prepare
from twopc.errors import BadRecordError
from twopc.integration.preflight import apis
from twopc.integration.preflight.command import main, run_preflight
from twopc.integration.preflight.findings import Result
from twopc.integration.services.kafka import LocalKafka
from twopc.integration.services.ports import free_ports
from twopc.sinks.kafka import KafkaSink
from twopc.sinks.kafka.ledger_topic import LedgerTopic, settings_of

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tests.live.rules.schedules import Play
    from tests.live.services import KafkaService
    from tests.services.kafka_cluster import LocalKafkaCluster
    from twopc.integration.preflight.findings import Finding
    from twopc.integration.preflight.report import Report

__all__ = ["cluster", "three_brokers"]

PREFLIGHT = [*COMMAND, "preflight"]
STEPS = (
    "transactional ids",
    "own topic",
    "transaction timeout",
    "driver",
    "pre-commit",
    "confirm",
    "list",
    "isolation",
    "decision",
    "commit",
    "second commit",
    "sweep",
    "abort",
    "markers",
    "fencing",
    "deletion",
)


class Line(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One finding, as programs read it."""

    check: str
    subject: str
    result: Literal["pass", "warn", "fail"]
    why: str
    fix: str


class Json(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The object that ``--json`` prints, as programs read it."""

    result: Literal["pass", "warn", "fail"]
    verdict: str
    counts: dict[Literal["pass", "warn", "fail"], int]
    sink: str
    bootstrap_servers: str
    cluster: str
    stand_in: str
    topics: list[str]
    seconds: float
    findings: list[Line]


def run_cli(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([*PREFLIGHT, *arguments], capture_output=True, text=True, check=False)


def new_name() -> str:
    return f"p{uuid.uuid4().hex[:10]}"


def sink_at(bootstrap_servers: str, name: str, **arguments: object) -> KafkaSink:
    return KafkaSink(name=name, bootstrap_servers=bootstrap_servers, **{"timeout_ms": 60_000, **arguments})  # type: ignore[arg-type]


def known_topic(bootstrap_servers: str, topic: str, config: dict[str, str] | None = None) -> str:
    """Create a topic, and wait until the broker knows it. The broker responds to the creation request earlier."""
    admin = AdminClient({"bootstrap.servers": bootstrap_servers})
    create_topic(bootstrap_servers, topic, config=config)
    assert until(lambda: settings_of(admin, topic, timeout_ms=60_000) is not None, 120)
    return topic


def patient(play: Play) -> KafkaSink:
    """The query's sink, for a preflight on a busy machine."""
    return dataclasses.replace(play.sink, timeout_ms=60_000)


def of(report: Report, check: str, subject: str | None = None) -> list[Finding]:
    return [one for one in report.findings if one.check == check and subject in {None, one.subject}]


def results(report: Report) -> dict[str, Result]:
    """The result of each step of the trial."""
    return {one.check: one.result for one in report.findings if one.subject == "the trial"}


def topics_of(bootstrap_servers: str, name: str) -> set[str]:
    """The topics whose names contain the sink's name."""
    admin = AdminClient({"bootstrap.servers": bootstrap_servers})
    return {topic for topic in admin.list_topics(timeout=30).topics if name in topic}


def test_a_healthy_broker_passes_every_step_and_is_left_unchanged(kafka: KafkaService, tmp_path: Path) -> None:
    with playing(kafka, tmp_path) as play:
        done = run_cli(
            "--bootstrap-servers", kafka.bootstrap_servers, "--sink", play.name, "--topic", play.topic, "--json"
        )
        assert done.returncode == 3, done.stderr  # a single broker cannot replicate a topic
        found = msgspec.json.decode(done.stdout, type=Json)
        assert (found.result, found.sink, found.topics) == ("warn", play.name, [play.topic])
        assert {one.check: one.result for one in found.findings if one.subject == "the trial"} == dict.fromkeys(
            STEPS, "pass"
        )
        assert all("replica" in one.why for one in found.findings if one.result == "warn"), found
        assert all(one.fix for one in found.findings if one.result != "pass")
        assert found.counts == {r: sum(one.result == r for one in found.findings) for r in ("pass", "warn", "fail")}
        assert topics_of(kafka.bootstrap_servers, play.name) == {play.topic}
        assert play.open_transactions() == ()
        assert "Traceback" not in done.stderr


def test_the_table_lists_each_finding_with_its_reason_and_its_fix(
    kafka: KafkaService, capsys: pytest.CaptureFixture[str]
) -> None:
    name = new_name()
    assert main(lambda: sink_at(kafka.bootstrap_servers, name), [f"{name}-absent"], as_json=False) == 1
    shown = " ".join(capsys.readouterr().out.replace("│", " ").split())
    assert f"twopc preflight {name}" in shown
    assert "the topic does not exist" in shown
    assert "Create the topic, or check its name" in shown
    assert "Do not start the query until the failed checks pass." in shown
    assert topics_of(kafka.bootstrap_servers, name) == set()  # no metadata request has created a topic


def test_a_running_query_with_the_same_sink_name_is_not_disturbed(kafka: KafkaService, tmp_path: Path) -> None:
    """Caught mutations: the stand-in has the sink's own name (fences its driver); its topic is the sink's ledger."""
    reports = []

    def check(_: int) -> None:
        reports.append(run_preflight(patient(play), [play.topic]))

    with playing(kafka, tmp_path) as play:
        driver = play.driver()
        driver.process(play.batch(0), Tasks(play, [["a"], ["b"]]))
        # In the middle of a batch: a task of the query has an open transaction.
        driver.process(play.batch(1), Tasks(play, [["c"], ["d"]], between=check))
        driver.process(play.batch(2), Tasks(play, [["e"]]))
        assert [report.result for report in reports] == [Result.WARN] * 2
        assert play.visible() == dict.fromkeys("abcde", 1)
        assert len(play.acquisitions()) == 1
        assert play.plans() == ["write"] * 3
        assert topics_of(kafka.bootstrap_servers, play.name) == {play.topic, play.sink.ledger}
        assert of(reports[0], "ledger")[0].result is Result.PASS


OUTPUTS = {
    "demanding": ({"min.insync.replicas": "2"}, Result.FAIL, "min.insync.replicas=2 exceeds the topic's 1 replica"),
    "small": ({"max.message.bytes": "50000"}, Result.WARN, "max.message.bytes=50000 is less than the 1048530 bytes"),
    "compacted": ({"cleanup.policy": "compact"}, Result.WARN, "refuses rows without a key"),
    "arrival": (
        {"message.timestamp.type": "LogAppendTime"},
        Result.WARN,
        "the brokers ignore the rows' timestamp column",
    ),
    "young": (
        {"message.timestamp.before.max.ms": "86400000"},
        Result.WARN,
        "rejects rows whose timestamp is more than 86400000 ms behind the broker's clock",
    ),
    "punctual": (
        {"message.timestamp.after.max.ms": "60000"},
        Result.WARN,
        "rejects rows whose timestamp is more than 60000 ms ahead of the broker's clock",
    ),
    "unclean": ({"unclean.leader.election.enable": "true"}, Result.WARN, "unclean.leader.election.enable=true"),
    "absent": (None, Result.FAIL, "the topic does not exist"),
}


def test_each_fault_of_an_output_topic_is_reported(kafka: KafkaService) -> None:
    name = new_name()
    topics = {f"{name}-{kind}": expected for kind, expected in OUTPUTS.items()}
    for topic, (config, _, _) in topics.items():
        if config is not None:
            known_topic(kafka.bootstrap_servers, topic, config)
    report = run_preflight(sink_at(kafka.bootstrap_servers, name), list(topics))
    assert report.result is Result.FAIL
    for topic, (_, result, why) in topics.items():
        lines = of(report, "output topic", topic)
        assert [line for line in lines if line.result is result and why in line.why and line.fix], lines


def test_a_row_whose_timestamp_the_topic_refuses_is_a_bad_record_and_the_error_names_the_setting(
    kafka: KafkaService, tmp_path: Path
) -> None:
    """The case that the finding warns about.

    Fails if the refusal is mistaken for a transient fault: the batch would be retried.
    """
    with playing(kafka, tmp_path) as play:
        play.driver().process(play.batch(0), Tasks(play, [["a"]]))  # creates the ledger
        topic = f"{play.name}-young"
        known_topic(kafka.bootstrap_servers, topic, {"message.timestamp.before.max.ms": "86400000"})
        rows = record_batch(["a"]).append_column("timestamp", pa.array([1_000], pa.int64()))
        sink = dataclasses.replace(play.sink, topic=topic)
        with pytest.raises(BadRecordError, match=r"message\.timestamp\.before\.max\.ms"):
            prepare(sink, attempt_of(work_of(play, 1, driver_epoch=1), play.name, 0), [rows])


def test_an_unreachable_broker_causes_a_one_line_error_without_a_traceback() -> None:
    [port] = free_ports(1)
    done = run_cli("--bootstrap-servers", f"127.0.0.1:{port}", "--sink", "orders", "--timeout", "2", "--json")
    assert done.returncode == 2
    assert not done.stdout
    assert done.stderr.startswith(f"twopc preflight: no Kafka broker responds at 127.0.0.1:{port}")
    assert done.stderr.count("\n") == 1, done.stderr


def test_a_request_that_brokers_do_not_support_is_reported_and_nothing_is_tried(
    kafka: KafkaService, monkeypatch: pytest.MonkeyPatch
) -> None:
    absent = apis.Need(ApiKey.EndTxn, 99, 99, "nothing")
    monkeypatch.setattr(apis, "NEEDS", (*apis.NEEDS, absent))
    report = run_preflight(sink_at(kafka.bootstrap_servers, name := new_name()), [f"{name}-out"])
    assert [line.result for line in of(report, "requests")] == [Result.FAIL]
    assert [line.check for line in report.findings if line.result is Result.PASS] == []
    assert of(report, "not tried")
    assert of(report, "output topic", f"{name}-out")[0].result is Result.FAIL
    assert not of(report, "start")
    assert not results(report)


def test_wrong_arguments_cause_a_one_line_error(kafka: KafkaService, capsys: pytest.CaptureFixture[str]) -> None:
    def said(name: str, topic: str) -> str:
        assert main(lambda: sink_at(kafka.bootstrap_servers, name), [topic], as_json=True) == 2
        printed = capsys.readouterr()
        assert not printed.out
        assert printed.err.count("\n") == 1, printed.err
        return printed.err

    assert "KafkaSink(topic='twopc-ledger-x'): this topic is a ledger" in said("orders", "twopc-ledger-x")
    assert "not a valid sink name" in said("a.b", "out")


class Interrupted(BaseException):
    """Stands in for KeyboardInterrupt, which would end pytest if it escaped."""


WHOLE = ("driver.fenced", "driver.deciding", "task.began", "task.handed_over")


@pytest.mark.parametrize("point", ["task.prepared", *(pytest.param(point, marks=pytest.mark.whole) for point in WHOLE)])
def test_an_interrupted_preflight_leaves_nothing_behind(kafka: KafkaService, tmp_path: Path, point: str) -> None:
    """Fails if the cleanup is not in a finally, or does not end the transactions."""

    def interrupt() -> None:
        raise Interrupted

    with playing(kafka, tmp_path) as play:
        with pytest.raises(Interrupted), at(point, interrupt):
            run_preflight(patient(play), [play.topic])
        assert play.open_transactions() == ()
        assert topics_of(kafka.bootstrap_servers, play.name) == {play.topic}


def test_a_topic_whose_creation_was_interrupted_is_waited_for_and_deleted(
    kafka: KafkaService, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The brokers may create it after the interruption. Fails if the cleanup only checks whether the topic exists."""
    really, asked = LedgerTopic._create, []

    def create(topic: LedgerTopic, *, validate_only: bool = False) -> None:
        if not validate_only:
            asked.append(topic)
            if len(asked) == 1:
                raise Interrupted
        really(topic, validate_only=validate_only)

    monkeypatch.setattr(LedgerTopic, "_create", create)
    name = new_name()
    with pytest.raises(Interrupted):
        run_preflight(sink_at(kafka.bootstrap_servers, name), [])
    assert len(asked) == 2
    assert topics_of(kafka.bootstrap_servers, name) == set()


PASSWORD = "secret"  # noqa: S105 - the password of a broker that stops after its tests


@pytest.fixture(scope="module")
def guarded() -> Iterator[LocalKafka]:
    """A broker with ACLs on its SASL listener (PLAIN), and short transactions. On the plain listener, everything is allowed."""
    module = f'org.apache.kafka.common.security.plain.PlainLoginModule required user_{USER}="{PASSWORD}";'
    properties = {
        "sasl.enabled.mechanisms": "PLAIN",
        "listener.name.guarded.plain.sasl.jaas.config": module,
        "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
        "super.users": "User:ANONYMOUS",
        "transaction.max.timeout.ms": "30000",
    }
    with LocalKafka(listeners={"GUARDED": "SASL_PLAINTEXT"}, properties=properties) as kafka:
        yield kafka


SHORT = {"kafka.transaction.timeout.ms": "20000"}


def test_a_transaction_timeout_above_the_brokers_maximum_causes_an_error_that_gives_both_settings(
    guarded: LocalKafka,
) -> None:
    report = run_preflight(sink_at(guarded.bootstrap_servers, new_name()), [])
    assert results(report) == {**dict.fromkeys(STEPS, Result.PASS), "transaction timeout": Result.FAIL}
    (line,) = of(report, "transaction timeout")
    assert "kafka.transaction.timeout.ms" in line.why
    assert "transaction.max.timeout.ms" in line.why


def test_a_message_limit_too_small_for_the_ledger_is_reported(guarded: LocalKafka) -> None:
    admin = AdminClient({"bootstrap.servers": guarded.bootstrap_servers})
    probe = known_topic(guarded.bootstrap_servers, new_name())

    def limit(operation: AlterConfigOpType, expected: int) -> None:
        entry = ConfigEntry("message.max.bytes", "9000", incremental_operation=operation)
        (done,) = admin.incremental_alter_configs(
            [ConfigResource(ResourceType.BROKER, "1", incremental_configs=[entry])]
        ).values()
        done.result()

        def is_known() -> bool:
            return (settings_of(admin, probe, timeout_ms=60_000) or {})["max.message.bytes"] == str(expected)

        assert until(is_known, 120)

    try:
        limit(AlterConfigOpType.SET, 9_000)
        report = run_preflight(sink_at(guarded.bootstrap_servers, new_name(), options=SHORT), [])
    finally:
        limit(AlterConfigOpType.DELETE, 1_048_588)
    (line,) = of(report, "driver")
    assert line.result is Result.FAIL
    assert "max.message.bytes=9000, which is too small" in line.why


def guarded_sink(kafka: LocalKafka) -> tuple[KafkaSink, str]:
    """A sink of a user who may do nothing yet, and its output."""
    name = new_name()
    options = {
        "kafka.security.protocol": "SASL_PLAINTEXT",
        "kafka.sasl.mechanism": "PLAIN",
        "kafka.sasl.username": USER,
        "kafka.sasl.password": PASSWORD,
        **SHORT,
    }
    topic = known_topic(kafka.bootstrap_servers, f"{name}-out")
    return sink_at(kafka.address("GUARDED"), name, options=options), topic


def test_the_documented_rights_pass_every_check(guarded: LocalKafka) -> None:
    sink, topic = guarded_sink(guarded)
    allow(guarded, documented_rights(sink, topic, with_trial=True))
    report = run_preflight(sink, [topic])
    assert results(report) == dict.fromkeys(STEPS, Result.PASS)
    assert not [line for line in report.findings if line.result is Result.FAIL]
    assert [
        line
        for line in of(report, "output topic", topic)
        if "Grant the preflight's principal DescribeConfigs" in line.fix
    ]
    assert topics_of(guarded.bootstrap_servers, sink.name) == {topic}


def test_rights_on_the_ledger_alone_suffice_for_the_sink_and_the_trial_reports_its_own_missing_right(
    guarded: LocalKafka,
) -> None:
    sink, topic = guarded_sink(guarded)
    allow(guarded, documented_rights(sink, topic))
    report = run_preflight(sink, [topic])
    assert report.result is Result.WARN, report.findings
    (line,) = of(report, "own topic")
    assert line.fix.endswith(f"with the prefix '{sink.ledger}.preflight-'")
    assert report.stand_in.startswith(f"{sink.ledger}.preflight-")
    assert "second commit" in of(report, "not tried")[0].why
    assert of(report, "ledger", sink.ledger)[0].result is Result.PASS


@pytest.mark.parametrize(
    ("kind", "right", "check", "fix"),
    [
        (ResourceType.TRANSACTIONAL_ID, "WRITE", "transactional ids", "Write and Describe on transactional ids"),
        (ResourceType.TOPIC, "CREATE", "ledger", "Grant the sink's principal Create"),
        (ResourceType.TOPIC, "WRITE", "output topic", "Grant the sink's principal WRITE"),
    ],
    ids=["ids", "ledger", "output"],
)
def test_a_missing_right_is_reported(guarded: LocalKafka, kind: ResourceType, right: str, check: str, fix: str) -> None:
    sink, topic = guarded_sink(guarded)
    rights = documented_rights(sink, topic, with_trial=True)
    allow(guarded, [one for one in rights if (one[0], one[3].name) != (kind, right)])
    report = run_preflight(sink, [topic])
    assert [line for line in of(report, check) if line.result is Result.FAIL and fix in line.fix], report.findings
    assert topics_of(guarded.bootstrap_servers, sink.name) == {topic}


def test_the_sink_runs_without_the_delete_right_and_the_trials_leftover_topic_is_reported(
    guarded: LocalKafka,
) -> None:
    sink, topic = guarded_sink(guarded)
    allow(
        guarded, [one for one in documented_rights(sink, topic, with_trial=True) if one[3] is not AclOperation.DELETE]
    )
    report = run_preflight(sink, [topic])
    assert results(report) == {**dict.fromkeys(STEPS, Result.PASS), "deletion": Result.WARN}
    (line,) = of(report, "clean-up")
    assert f"could not delete its topic {report.stand_in}" in line.why
    assert report.result is Result.WARN


@pytest.mark.whole
def test_three_brokers_with_replicated_topics_pass_every_check(cluster: LocalKafkaCluster) -> None:
    name = new_name()
    topic = replicated_topic(cluster, f"{name}-out", 4)
    done = run_cli("--bootstrap-servers", cluster.bootstrap_servers, "--sink", name, "--topic", topic, "--json")
    found = msgspec.json.decode(done.stdout, type=Json)
    assert (done.returncode, found.result) == (0, "pass"), found
    assert [one.subject for one in found.findings if one.check == "requests"] == ["broker 1, 2, 3"]
    assert topics_of(cluster.bootstrap_servers, name) == {topic}
