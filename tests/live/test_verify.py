"""``twopc verify`` on a real broker: it finds every fault and changes nothing."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import signal
import subprocess
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

import pytest
from confluent_kafka import Producer

from tests.live.command import COMMAND, INTERRUPTIBLE
from tests.live.pipeline import Tasks, opened
from tests.live.rules.schedules import Play, crash, playing, until
from twopc.coordinator import Coordinator
from twopc.files import LocalFiles
from twopc.integration.verify.cluster import Cluster
from twopc.integration.verify.expressions import parse
from twopc.integration.verify.findings import Kind, Severity
from twopc.integration.verify.output import Output, RecordChecks
from twopc.integration.verify.verifier import Verifier, VerifyOptions
from twopc.override import Abandon, Overrides
from twopc.sealed import OtherVersionError
from twopc.settings import Settings

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    from tests.live.services import KafkaService
    from twopc.integration.verify.report import Report

ROWS = [["a", "b"], ["c"], []]


@pytest.fixture
def play(kafka: KafkaService, tmp_path: Path) -> Iterator[Play]:
    with playing(kafka, tmp_path) as one:
        yield one


def run_cli(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([*COMMAND, "verify", *arguments], capture_output=True, text=True, check=False)


@contextlib.contextmanager
def verifier(play: Play, **options: Any) -> Iterator[Verifier]:
    with contextlib.closing(Cluster(play.sink)) as cluster, Verifier(cluster, VerifyOptions(**options)) as one:
        yield one


def check(one: Verifier) -> Report:
    return one.check(lambda _: None, lambda _: None)


def report_of(play: Play, **options: Any) -> Report:
    with verifier(play, **options) as one:
        return check(one)


def kinds(report: Report) -> list[Kind]:
    return [finding.kind for finding in report.findings]


def write(play: Play, *batches: Sequence[Sequence[str]], first: int = 0, **settings: Any) -> None:
    driver = play.driver(Settings(**settings) if settings else None)
    for number, rows in enumerate(batches, start=first):
        driver.process(play.batch(number), Tasks(play, rows))


def spark_checkpoint(play: Play, path: Path, batches: int, *, ends: Sequence[int] = ()) -> LocalFiles:
    """The files that Spark would have left for a Kafka source of one partition."""
    for directory in ("offsets", "commits", "sources/0"):
        (path / directory).mkdir(parents=True)
    (path / "metadata").write_text(json.dumps({"id": play.query_id}))
    (path / "sources/0/0").write_text('\0v1\n{"in":{"0":0}}')
    for batch in range(batches):
        offset = {"in": {"0": ends[batch] if ends else 3 * (batch + 1)}}
        (path / "offsets" / str(batch)).write_text(f"v1\n{{}}\n{json.dumps(offset)}")
        (path / "commits" / str(batch)).write_text("v1\n{}")
    return LocalFiles(path)


def kafka_offsets(play: Play, *ends: int) -> None:
    play.offsets = {batch: (f'{{"in":{{"0":{end}}}}}',) for batch, end in enumerate(ends)}


def test_a_healthy_sink_has_no_findings(play: Play, tmp_path: Path) -> None:
    kafka_offsets(play, 3, 6)
    write(play, ROWS, [["d"], [], ["e", "f"]])
    report = report_of(
        play,
        checkpoint=spark_checkpoint(play, tmp_path / "checkpoint", 2),
        record_checks=RecordChecks(key=parse("key")),
        one_to_one=True,
        sole_writer=True,
    )
    assert report.findings == ()
    assert (report.query_id, report.topics, report.records, report.rows) == (play.query_id, (play.topic,), 6, 6)
    assert (report.transactions, report.visible, report.open, report.first_batch, report.last_batch) == (4, 4, 0, 0, 1)
    assert report.is_ok and report.complete


def test_verify_fences_no_driver_and_writes_nothing(play: Play) -> None:
    driver = play.driver()
    driver.process(play.batch(0), Tasks(play, ROWS))
    ledger = play.sink.create_decision_log()
    before = ledger.inspect()
    entries = list(before.entries)
    report_of(play)
    after = ledger.inspect()
    assert (after.start, list(after.entries)) == (before.start, entries)
    ledger.close()
    driver.process(play.batch(1), Tasks(play, [["d"]]))
    assert report_of(play).last_batch == 1


def test_duplicates_written_by_others_are_found_and_located(play: Play) -> None:
    write(play, ROWS)
    producer = Producer({"bootstrap.servers": play.bootstrap_servers, "log_level": 0})
    producer.produce(play.topic, b"a", b"a", partition=0)
    assert producer.flush(10) == 0
    report = report_of(play, record_checks=RecordChecks(key=parse("key")), sole_writer=True)
    assert kinds(report) == [Kind.RECORDS_UNDECIDED, Kind.DUPLICATES]
    assert report.findings[0].text.startswith(
        "4 records for 3 decided rows; no decided transaction wrote 1 of these records: "
    )
    assert report.findings[1].text.startswith("1 duplicates")
    assert f"{play.topic}[0]@" in report.findings[1].text
    assert kinds(report_of(play)) == [Kind.RECORDS_EXTRA]
    assert report_of(play).is_ok


def test_a_single_stray_record_with_a_new_key_is_reported_with_its_position(play: Play) -> None:
    """It is among aborted records, which no reader sees: those of a foreign transaction, and of a batch that was rewritten."""
    crash(play.driver(), play, 0, ROWS, "driver.decided")
    for handle in play.decided(0):
        play.fence(handle.transactional_id)
    write(play, ROWS)
    open_one = play.open_foreign("aborted", play.topic, 1)
    open_one.abort_transaction(10)
    places = []
    producer = Producer({"bootstrap.servers": play.bootstrap_servers, "log_level": 0})
    producer.produce(play.topic, b"new", b"new", partition=1, on_delivery=lambda _, sent: places.append(sent.offset()))
    assert producer.flush(10) == 0
    committed_one = play.open_foreign("committed", play.topic, 2)
    committed_one.commit_transaction(10)
    (finding,) = (one for one in report_of(play).findings if one.kind is Kind.RECORDS_EXTRA)
    assert (
        f"; no decided transaction wrote 2 of these records: {play.topic}[1]@{places[0]} (producer id -1)"
        in finding.text
    )
    assert f"{play.topic}[2]@" in finding.text


def test_without_transactions_the_records_are_read_only_if_the_topic_is_named(play: Play) -> None:
    play.sink = dataclasses.replace(play.sink, guarantee="AT_LEAST_ONCE")
    write(play, ROWS)
    checks = RecordChecks(key=parse("key"))
    unread = report_of(play, record_checks=checks)
    assert (kinds(unread), unread.records) == ([Kind.NOT_COMPARED, Kind.NOT_COMPARED], None)
    assert "--topic" in unread.verdict and not unread.facts()["all_compared"]

    read = report_of(play, record_checks=checks, topics=frozenset({play.topic}), sole_writer=True)
    assert (kinds(read), read.records) == ([Kind.NOT_COMPARED], 3)
    assert "without a transaction" in read.verdict


def test_missing_numbers_of_a_sequence_are_counted(play: Play) -> None:
    write(play, [["1", "2"], ["5"]])
    report = report_of(play, record_checks=RecordChecks(sequence=parse("value")))
    assert kinds(report) == [Kind.SEQUENCE_GAPS]
    assert "2 numbers are missing, such as 2 to 5" in report.findings[0].text


def test_a_sequence_is_judged_once_no_commit_is_in_progress(play: Play) -> None:
    write(play, [["1", "2"], ["3"]])
    crash(play.driver(), play, 1, [["5"], ["7"]], "driver.decided")  # written to partitions 2 and 3
    five, seven = play.decided(1)
    assert play.end(seven, commit=True) == "NONE"
    with verifier(play, record_checks=RecordChecks(sequence=parse("value"))) as one:
        half = check(one)
        (gap,) = (finding for finding in half.findings if "missing, such as 3 to 7" in finding.text)
        assert gap.kind is Kind.NOT_COMPARED and half.is_ok
        assert play.end(five, commit=True) == "NONE"
        (whole,) = check(one).findings
    assert whole.kind is Kind.SEQUENCE_GAPS and whole.text.startswith("2 numbers are missing, such as 3 to 5 at")


def test_a_sequence_is_not_judged_if_a_batch_is_decided_during_the_check(
    play: Play, monkeypatch: pytest.MonkeyPatch
) -> None:
    driver = play.driver()
    driver.process(play.batch(0), Tasks(play, [["1"]]))
    bounds = Cluster.bounds

    def torn(self: Cluster, topic: str) -> Any:
        """End partition 0 before the batch and the other partitions after it."""
        before = bounds(self, topic)
        driver.process(play.batch(1), Tasks(play, [["2"], ["3"]]))
        while (after := bounds(self, topic)) is None or after.held_back:
            pass  # wait for the commits
        after.ends[0] = after.stable[0] = before.ends[0] if before else 0
        return after

    monkeypatch.setattr(Cluster, "bounds", torn)
    with verifier(play, record_checks=RecordChecks(sequence=parse("value"))) as one:
        assert Kind.SEQUENCE_GAPS not in kinds(check(one))
        monkeypatch.undo()
        assert check(one).findings == ()


def test_an_uncommitted_batch_is_distinguished_from_a_lost_one(play: Play) -> None:
    write(play, ROWS)
    crash(play.driver(), play, 1, [["d"], ["e"]], "driver.decided")
    report = report_of(play)
    assert kinds(report) == [Kind.DECIDED_OPEN, Kind.DECIDED_OPEN, Kind.HELD_BACK, Kind.NOT_COMPARED]
    assert report.is_ok and report.open == 2

    for handle in play.decided(1):
        play.fence(handle.transactional_id)  # as the broker does after the transaction timeout
    lost = report_of(play)
    assert kinds(lost) == [Kind.DECIDED_LOST, Kind.DECIDED_LOST]
    assert not lost.is_ok

    play.driver().process(play.batch(1), Tasks(play, [["d"], ["e"]]))
    fixed = report_of(play, record_checks=RecordChecks(key=parse("key")))
    assert kinds(fixed) == [Kind.REPAIRED]
    assert (fixed.records, fixed.rewritten) == (5, 1)


def test_a_repaired_batch_has_no_rows_of_the_replaced_transaction(play: Play) -> None:
    crash(play.driver(), play, 0, [["a"], ["b"]], "driver.decided")
    play.fence(play.decided(0)[0].transactional_id)
    play.driver().process(play.batch(0), Tasks(play, [["a"], ["b"]]))
    report = report_of(play, record_checks=RecordChecks(key=parse("key")))
    assert kinds(report) == [Kind.REPAIRED]
    assert (report.repaired, report.transactions, report.visible, report.records) == (1, 2, 2, 2)


def test_an_abandoned_batch_is_neither_lost_nor_missing(play: Play) -> None:
    crash(play.driver(), play, 0, [["a"], ["b"]], "driver.decided")
    lost, kept = play.decided(0)
    play.fence(lost.transactional_id)
    assert until(lambda: play.end(kept, commit=True) == "NONE")
    given_up = Settings(overrides=Overrides(abandoned={Abandon(0)}))
    play.driver(given_up).process(play.batch(1), Tasks(play, [["c"]]))
    report = report_of(play, record_checks=RecordChecks(key=parse("key")), sole_writer=True)
    assert kinds(report) == [Kind.ABANDONED]
    assert report.is_ok and (report.records, report.last_batch) == (2, 1)


def test_an_abandoned_batch_hides_neither_an_extra_record_nor_a_lost_one(play: Play) -> None:
    crash(play.driver(), play, 0, [["1", "2"], ["3"]], "driver.decided")
    lost, kept = play.decided(0)
    play.fence(lost.transactional_id)
    assert until(lambda: play.end(kept, commit=True) == "NONE")
    given_up = Settings(overrides=Overrides(abandoned={Abandon(0)}))
    play.driver(given_up).process(play.batch(1), Tasks(play, [["4"], ["6"]]))  # the source also had a 5
    producer = Producer({"bootstrap.servers": play.bootstrap_servers, "log_level": 0})
    producer.produce(play.topic, b"7", b"7", partition=0)
    assert producer.flush(10) == 0
    report = report_of(play, record_checks=RecordChecks(sequence=parse("value")), sole_writer=True)
    assert kinds(report) == [Kind.ABANDONED, Kind.RECORDS_UNDECIDED, Kind.SEQUENCE_GAPS]
    abandoned, extra, gap = (one.text for one in report.findings)
    assert "its rows are lost and do not count as decided rows" in abandoned
    assert extra.startswith("4 records for 3 decided rows; no decided transaction wrote 1 of these records: ")
    assert (
        gap.startswith("1 number is missing, such as 4 to 6")
        and "Rows that were abandoned (batches 0) may be among them" in gap
    )
    assert report.rows == 3


def test_a_committed_transaction_without_a_decision_is_an_error(play: Play) -> None:
    write(play, ROWS)
    crash(play.driver(), play, 1, [["d"]], "driver.confirmed")
    (orphan,) = play.open_transactions()
    running = report_of(play)
    assert Kind.RUNNING_OPEN in kinds(running) and running.is_ok
    assert play.end(play.found(orphan), commit=True) == "NONE"
    report = report_of(play)
    assert kinds(report) == [Kind.UNDECIDED_VISIBLE, Kind.RECORDS_EXTRA]
    assert "no decided transaction wrote 1 of these records" in report.findings[1].text
    assert report.findings[0].where == "batch 1"


def test_an_open_transaction_of_an_earlier_driver_is_an_orphan(play: Play) -> None:
    write(play, ROWS)
    crash(play.driver(), play, 1, [["d"]], "driver.confirmed")
    crash(play.driver(), play, 1, [["d"]], "driver.acquired")
    report = report_of(play)
    assert Kind.ORPHAN_OPEN in kinds(report)
    assert all(finding.kind.severity is not Severity.ERROR for finding in report.findings)


def test_a_checkpoint_with_different_offsets_is_an_error(play: Play, tmp_path: Path) -> None:
    kafka_offsets(play, 3, 6)
    write(play, ROWS, ROWS)
    files = spark_checkpoint(play, tmp_path / "checkpoint", 4, ends=(3, 7, 9, 12))
    report = report_of(play, checkpoint=files, one_to_one=True)
    assert kinds(report) == [Kind.OFFSETS_DIFFER, Kind.COMMITTED_UNDECIDED]
    assert (report.findings[0].where, report.findings[1].where) == ("batch 1", "batches 2-3")


def test_batches_that_finish_while_the_output_is_read_cause_no_findings(
    play: Play, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "checkpoint"
    kafka_offsets(play, 3, 6, 9, 12)
    driver = play.driver(Settings(keep_batches=2))
    driver.process(play.batch(0), Tasks(play, ROWS))
    files = spark_checkpoint(play, path, 1)
    read_new = Output.read_new

    def read_meanwhile(self: Output, *arguments: Any) -> None:
        for number in range(1, 4):
            (path / "offsets" / str(number)).write_text(f"v1\n{{}}\n{play.offsets[number][0]}")
            driver.process(play.batch(number), Tasks(play, ROWS))
            (path / "commits" / str(number)).write_text("v1\n{}")
        for directory in ("offsets", "commits"):
            (path / directory / "0").unlink()  # as Spark deletes old files
        read_new(self, *arguments)

    monkeypatch.setattr(Output, "read_new", read_meanwhile)
    assert report_of(play, checkpoint=files).findings == ()


def test_truncated_decisions_are_not_compared(play: Play) -> None:
    write(play, *([[str(number)]] for number in range(7)), keep_batches=2)
    report = report_of(play, record_checks=RecordChecks(key=parse("key"), sequence=parse("key")))
    assert kinds(report) == [Kind.NOT_COMPARED]
    assert not report.complete and report.records == 7 and report.last_batch == 6


def test_a_later_check_reads_only_new_records_and_finds_duplicates_of_old_ones(play: Play) -> None:
    driver = play.driver()
    driver.process(play.batch(0), Tasks(play, ROWS))
    with verifier(play, record_checks=RecordChecks(key=parse("key"))) as one:
        assert check(one).findings == ()
        driver.process(play.batch(1), Tasks(play, [["d"], ["a"]]))
        read: list[int] = []
        report = one.check(lambda _: None, read.append)
    assert (sum(read), report.records, report.last_batch) == (2, 5, 1)
    assert kinds(report) == [Kind.DUPLICATES]


def test_a_sink_without_decisions_has_no_findings(play: Play) -> None:
    crash(play.driver(), play, 0, ROWS, "driver.acquired")
    report = report_of(play, record_checks=RecordChecks(key=parse("key")))
    assert (report.findings, report.last_batch, report.acquisitions, report.records) == ((), None, 1, None)


def test_the_second_sink_of_a_query_is_compared_with_the_first_sinks_ledger(play: Play, tmp_path: Path) -> None:
    second = dataclasses.replace(play.sink, name=f"{play.name}-second")
    opened.append(Coordinator([play.sink, second], LocalFiles(tmp_path / "both")))
    opened[-1].process(play.batch(0), Tasks(play, ROWS))
    with contextlib.closing(Cluster(second)) as cluster, Verifier(cluster, VerifyOptions()) as one:
        report = check(one)
    assert (report.sink, report.ledger, report.last_batch) == (second.name, play.sink.ledger, 0)
    assert (report.acquisitions, report.transactions, report.findings) == (1, 0, ())


def test_batches_of_a_sink_that_ran_alone_are_not_compared_with_a_shared_ledger(play: Play, tmp_path: Path) -> None:
    write(play, ROWS, [["d"]])
    first = dataclasses.replace(play.sink, name=f"first-{play.name}")
    files = LocalFiles(tmp_path / "both")
    opened.append(Coordinator([first], files))
    opened[-1].process(play.batch(0, query_id="joined"), Tasks(play, [[]], sinks=[first]))
    settings = Settings(overrides=Overrides(added_sinks={play.name}, end_query_ids={play.query_id}))
    opened.append(Coordinator([first, play.sink], files, settings=settings))
    opened[-1].process(play.batch(1, query_id="joined"), Tasks(play, [["e"]]))
    report = report_of(play)
    assert (report.ledger, report.transactions, report.visible) == (first.ledger, 1, 1)
    assert kinds(report) == [Kind.NOT_COMPARED, Kind.NOT_COMPARED]


def test_a_damaged_ledger_is_the_only_finding(play: Play) -> None:
    write(play, ROWS)
    producer = Producer({"bootstrap.servers": play.bootstrap_servers, "log_level": 0})
    producer.produce(play.sink.ledger, b"not ours", partition=0)
    assert producer.flush(10) == 0
    assert kinds(report_of(play)) == [Kind.LEDGER_DAMAGED]


def test_a_ledger_from_another_version_is_not_called_damaged(play: Play) -> None:
    write(play, ROWS)
    producer = Producer({"bootstrap.servers": play.bootstrap_servers, "log_level": 0})
    producer.produce(play.sink.ledger, f"twopc/9 {'0' * 64} 1/1 {'0' * 16}\n{{}}".encode(), partition=0)
    assert producer.flush(10) == 0
    with pytest.raises(OtherVersionError, match="Use the version that wrote the record"):
        report_of(play)


def test_the_command_prints_json_and_fails_if_it_finds_errors(play: Play) -> None:
    write(play, ROWS)
    arguments = ("--bootstrap-servers", play.bootstrap_servers, "--sink", play.name, "--key", "value", "--json")
    done = run_cli(*arguments)
    assert (done.returncode, done.stderr) == (0, "")
    facts = json.loads(done.stdout)
    assert (facts["ok"], facts["records"], facts["rows"], facts["findings"]) == (True, 3, 3, [])

    write(play, [["a"]], first=1)
    done = run_cli(*arguments)
    assert done.returncode == 1
    (finding,) = json.loads(done.stdout)["findings"]
    assert (finding["kind"], finding["severity"], finding["where"]) == ("duplicates", "error", play.topic)
    done = run_cli(*arguments[:-1])
    assert done.returncode == 1
    assert "1 duplicates" in done.stdout


def test_the_command_checks_repeatedly_online(play: Play) -> None:
    write(play, ROWS)
    with watch(play, "--interval", "0.1", "--seconds", "3600", "--json") as watching:
        checks = [json.loads(line_of(watching)) for _ in range(2)]
        watching.send_signal(signal.SIGINT)
        assert watching.wait(30) == 0
    assert [found["records"] for found in checks] == [3, 3]


def watch(play: Play, *arguments: str) -> subprocess.Popen[str]:
    whom = ("--bootstrap-servers", play.bootstrap_servers, "--sink", play.name)
    return subprocess.Popen(
        [*INTERRUPTIBLE, "verify", *whom, "--online", *arguments], stdout=subprocess.PIPE, text=True
    )


def line_of(watching: subprocess.Popen[str]) -> str:
    assert watching.stdout is not None
    line = watching.stdout.readline()
    assert line, f"the command ended with status {watching.wait(30)}"
    return line


def test_a_watch_interrupted_with_ctrl_c_prints_its_report(play: Play) -> None:
    write(play, ROWS)
    with watch(play, "--interval", "60") as watching:
        assert watching.stdout is not None
        assert "3 records" in line_of(watching)
        watching.send_signal(signal.SIGINT)
        assert "No errors found." in watching.stdout.read()
        assert watching.wait(30) == 0


@pytest.mark.whole
def test_a_query_that_writes_during_the_checks_causes_no_errors(play: Play) -> None:
    driver = play.driver()
    driver.process(play.batch(0), Tasks(play, [["0"], ["-1"]]))
    last = 30

    def run() -> None:
        for number in range(1, last + 1):
            driver.process(play.batch(number), Tasks(play, [[str(number)], [str(-number - 1)]]))

    reports: list[Report] = []
    with ThreadPoolExecutor(1) as pool, verifier(play, record_checks=RecordChecks(key=parse("key"))) as one:
        query = pool.submit(run)
        while not query.done():
            reports.append(check(one))
        query.result()
        reports.append(check(one))
    assert len({report.last_batch for report in reports}) > 2, "no batch was written during the checks"
    temporary = {Kind.RUNNING_OPEN, Kind.DECIDED_OPEN, Kind.HELD_BACK, Kind.NOT_COMPARED, Kind.DECIDED_UNKNOWN}
    assert {kind for report in reports for kind in kinds(report)} <= temporary
    assert (reports[-1].findings, reports[-1].records, reports[-1].last_batch) == ((), 2 * (last + 1), last)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--sink", "nobody"), "topic twopc-ledger-nobody does not exist"),
        (("--topic", "no-such-topic"), "has not written to no-such-topic, only to"),
        (("--key", "json:n"), "'json:n' is not an expression"),
        (("--by", "key"), "--by needs --sequence"),
        (("--config", "ssl.ca.location"), "an option is not in the form key=value"),
        (("--config", "sasl.jaas.config=x"), "'kafka.sasl.jaas.config' is for Java clients"),
        (("--checkpoint", "/no/such/path"), "does not exist"),
        (("--checkpoint", "file:///no/such/path"), "directory /no/such/path does not exist"),
        (("--checkpoint", "hdfs://host/path"), "is not on this machine"),
        (("--bootstrap-servers", "127.0.0.1:1", "--timeout", "1"), "no Kafka broker responds at 127.0.0.1:1"),
    ],
)
def test_a_usage_error_is_reported_in_one_message(play: Play, arguments: tuple[str, ...], message: str) -> None:
    write(play, ROWS)
    done = run_cli("--bootstrap-servers", play.bootstrap_servers, "--sink", play.name, *arguments)
    assert done.returncode == 2
    assert message in " ".join(done.stderr.replace("│", " ").split())
    assert not done.stdout
    assert "Traceback" not in done.stderr
