from __future__ import annotations

import contextlib
import json
import signal
import subprocess
import time
import uuid
from typing import TYPE_CHECKING, Any

import psutil
import pytest
from confluent_kafka import Producer

from tests.live.command import COMMAND, INTERRUPTIBLE
from twopc.crash_points import POINTS
from twopc.integration.demo import plan
from twopc.integration.demo.queries import with_twopc
from twopc.integration.demo.report import facts, is_exactly_once
from twopc.integration.demo.run import DemoOptions, main
from twopc.integration.demo.stores.kafka import KEYS, KafkaOutput
from twopc.integration.services import ServiceError
from twopc.testing.kill_loop import KafkaTopic, Kill, KillLoop, Moment, QueryFailedError
from twopc.testing.kill_loop.outcome import judge
from twopc.testing.kill_loop.records import Reader, key_of
from twopc.testing.kill_loop.run import Run

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

    from tests.live.services import KafkaService

TIMEOUT_S = 240
KEYS_OF_JSON = {
    *("rows_in", "rows_out", "lost", "duplicated", "out_of_order", "unfinished"),
    *("kills", "kill_steps", "seconds", "seed"),
}


def run_cli(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([*COMMAND, *arguments], capture_output=True, text=True, check=False)


@pytest.mark.timeout(900)
@pytest.mark.whole
def test_demo_alongside_sparks_own_sink_writes_rows_exactly_once_despite_kills() -> None:
    done = run_cli("demo", "--rows", "3000", "--kills", "3", "--seed", "7", "--json")

    assert done.returncode == 0, done.stderr
    ours = json.loads(done.stdout)
    baseline = ours.pop("baseline")
    assert set(ours) == set(baseline) == KEYS_OF_JSON
    assert (ours["rows_in"], ours["rows_out"], ours["seed"]) == (3000, 3000, 7)
    assert (ours["lost"], ours["duplicated"], ours["out_of_order"], ours["unfinished"]) == (0, 0, 0, 0)
    assert ours["kills"] == len(ours["kill_steps"]) == 3
    assert (baseline["rows_in"], baseline["lost"], baseline["kills"]) == (3000, 0, 3)
    assert baseline["rows_out"] == 3000 + baseline["duplicated"]


@pytest.mark.timeout(900)
def test_demo_writes_rows_exactly_once_despite_a_kill() -> None:
    done = run_cli("demo", "--rows", "2000", "--kills", "1", "--seed", "7", "--no-baseline", "--json")

    assert done.returncode == 0, done.stderr
    ours = json.loads(done.stdout)
    assert (ours["rows_in"], ours["rows_out"], ours["kills"]) == (2000, 2000, 1)
    assert (ours["lost"], ours["duplicated"], ours["out_of_order"], ours["unfinished"]) == (0, 0, 0, 0)


@pytest.mark.timeout(1800)
@pytest.mark.whole
def test_demo_under_connect_writes_rows_exactly_once_no_matter_which_process_is_killed() -> None:
    done = run_cli("demo", "--connect", "--rows", "3000", "--kills", "4", "--seed", "7", "--shuffle", "--json")

    assert done.returncode == 0, done.stderr
    ours = json.loads(done.stdout)
    baseline = ours.pop("baseline")
    assert set(ours) == set(baseline) == KEYS_OF_JSON
    assert [ours[name] for name in ("rows_out", "lost", "duplicated", "out_of_order", "unfinished")] == [
        3000,
        0,
        0,
        0,
        0,
    ]
    victims = {step.partition(" ")[2] for step in ours["kill_steps"]}
    # If no worker runs at the moment of a worker's kill, all of the query is killed.
    assert {"(server)", "(client)", ""} <= victims <= {"(worker)", "(server)", "(client)", ""}
    assert (baseline["lost"], baseline["kills"]) == (0, 4)


def test_a_demo_under_connect_reports_what_it_is_missing(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("pyspark.__version__", "3.5.9")
    options = DemoOptions(
        rows=9, kills=1, seed=1, partitions=1, batch_rows=None, shuffle=False, baseline=False, connect=True
    )
    assert main(options, as_json=True) == 1
    assert "Spark Connect needs PySpark 4.0 or newer" in capsys.readouterr().err


@pytest.mark.timeout(900)
@pytest.mark.whole
def test_demo_writes_rows_exactly_once_to_each_of_three_sinks_but_the_code_shown_in_guides_does_not() -> None:
    done = run_cli(
        "demo", "--rows", "3000", "--kills", "2", "--seed", "11", "--sinks", "kafka,iceberg,postgres", "--json"
    )

    assert done.returncode == 0, done.stderr
    ours = json.loads(done.stdout)
    baseline = ours.pop("baseline")
    right = {"rows_out": 3000, "lost": 0, "duplicated": 0, "out_of_order": 0, "unfinished": 0}
    assert ours["outputs"] == {"Kafka": right, "Iceberg": right, "PostgreSQL": right}
    assert (ours["rows_in"], ours["rows_out"], ours["kills"]) == (3000, 9000, 2)
    assert baseline["lost"] == 0
    assert all(found["rows_out"] == 3000 + found["duplicated"] for found in baseline["outputs"].values())
    assert baseline["duplicated"] > 0


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--rows", "0"), "--rows"),
        (("--kills", "-1"), "--kills"),
        (("--partitions", "0"), "--partitions"),
        (("--batch-rows", "0"), "--batch-rows"),
        (("--rows", "5", "--kills", "5"), "5 kills need more than 5 rows"),
        (("--rows", "many"), "--rows"),
        (("--sinks", "kafka,postgre"), "choose from"),
    ],
)
def test_an_invalid_argument_is_rejected_with_an_error_that_identifies_it(
    arguments: tuple[str, ...], message: str
) -> None:
    done = run_cli("demo", *arguments)

    assert done.returncode == 2
    assert message in " ".join(done.stderr.split())
    assert not done.stdout


@pytest.mark.whole
@pytest.mark.timeout(600)
def test_an_interrupted_demo_leaves_no_process_running() -> None:
    with subprocess.Popen(
        [*INTERRUPTIBLE, "demo", "--rows", "1000", "--kills", "0", "--json"],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    ) as demo:
        started: set[psutil.Process] = set()
        deadline = time.monotonic() + TIMEOUT_S
        while not any("pyspark" in argument for process in started for argument in arguments_of(process)):
            assert time.monotonic() < deadline
            started |= set(psutil.Process(demo.pid).children(recursive=True))
            time.sleep(0.1)
        started |= set(psutil.Process(demo.pid).children(recursive=True))

        demo.send_signal(signal.SIGINT)

        assert demo.wait(TIMEOUT_S) == 130
        _, alive = psutil.wait_procs(started, timeout=10)
        assert not alive


def arguments_of(process: psutil.Process) -> list[str]:
    with contextlib.suppress(psutil.NoSuchProcess):
        return process.cmdline()
    return []


def test_a_failed_query_shows_its_log(kafka: KafkaService, tmp_path: Path) -> None:
    topic = new_topic(kafka)
    loop = KillLoop(
        read=list,
        query=with_twopc([KafkaOutput(kafka.bootstrap_servers, topic, 1)], 0),
        source=KafkaTopic(kafka.bootstrap_servers, f"{topic}-source"),
        directory=tmp_path,
        rows=10,
        batch_rows=10,
        java_home=str(tmp_path / "no-java-here"),
        written=int,
    )
    with pytest.raises(QueryFailedError, match="no-java-here"):
        loop.run([Kill(moment=Moment.POINT, point="task.prepared")])


def test_a_query_ignores_the_users_spark_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SPARK_HOME", "/somewhere/else")
    monkeypatch.setenv("TWOPC_CRASH_POINTS", "driver.decided=kill")
    run = Run(
        reader=Reader(format="json", options={}),
        target="-",
        is_query=True,
        checkpoint="-",
        scratch="/scratch",
        spark={},
        java_home="-",
        path=[],
        kill=None,
        reached="-",
    )
    environment = run.environment()
    assert "SPARK_HOME" not in environment
    assert environment["TWOPC_CRASH_POINTS"] == ""
    assert environment["TMPDIR"] == "/scratch"


# -- the kills ---------------------------------------------------------------------------------------------------------


def test_the_seed_determines_the_kills() -> None:
    assert plan.protocol_kills(3, 20) == plan.protocol_kills(3, 20) != plan.protocol_kills(4, 20)
    assert plan.outside_kills(3, 20) == plan.outside_kills(3, 20) != plan.outside_kills(4, 20)


@pytest.mark.parametrize("count", [0, 1, 2, 5, 40])
def test_the_number_of_kills_is_as_requested_and_their_points_vary(count: int) -> None:
    kills = plan.protocol_kills(1, count)
    points = [kill.point for kill in kills if kill.point]
    assert len(kills) == len(plan.outside_kills(1, count)) == count
    assert len(set(points)) == min(len(points), len(POINTS))
    if count > 2:
        assert len(points) < count


# -- the judge ---------------------------------------------------------------------------------------------------------


def new_topic(kafka: KafkaService) -> str:
    topic = f"demo-{uuid.uuid4().hex[:10]}"
    KafkaTopic(kafka.bootstrap_servers, topic).create()
    return topic


def write(kafka: KafkaService, topic: str, numbers: Iterable[int], **config: str) -> Producer:
    """Write records to the output. With a `transactional.id`, the transaction stays open."""
    # Idempotent, because a plain producer that repeats a refused request may write its records after later ones, or
    # twice.
    producer = Producer({"bootstrap.servers": kafka.bootstrap_servers, "enable.idempotence": True, **config})
    if config:
        producer.init_transactions(TIMEOUT_S)
        producer.begin_transaction()
    for number in numbers:
        producer.produce(topic, str(number), key_of(number, KEYS), partition=number % 2)
    assert producer.flush(TIMEOUT_S) == 0
    return producer


def judged_topic(kafka: KafkaService, topic: str, rows: int) -> dict[str, Any]:
    output = KafkaOutput(kafka.bootstrap_servers, topic, 2)
    unfinished = output.unfinished()
    return facts(judge(rows, output.numbers(rows), keys=KEYS), unfinished)


def judged(kafka: KafkaService, written: Iterable[int], *, rows: int = 3 * KEYS) -> dict[str, Any]:
    topic = new_topic(kafka)
    write(kafka, topic, written)
    return judged_topic(kafka, topic, rows)


def counted(result: dict[str, Any], *names: str) -> list[int]:
    return [result[name] for name in names]


COUNTS = ("rows_out", "lost", "duplicated", "out_of_order")


def test_the_judge_finds_no_error_in_a_faithful_copy(kafka: KafkaService) -> None:
    result = judged(kafka, range(3000))
    assert counted(result, "rows_in", *COUNTS, "unfinished") == [3000, 3000, 0, 0, 0, 0]
    assert is_exactly_once(result)


def test_the_judge_finds_a_lost_record(kafka: KafkaService) -> None:
    result = judged(kafka, [number for number in range(3000) if number not in {0, 1500, 2999}])
    assert counted(result, *COUNTS) == [2997, 3, 0, 0]
    assert not is_exactly_once(result)


def test_the_judge_counts_every_duplicate(kafka: KafkaService) -> None:
    result = judged(kafka, [*range(3000), 2999, 2999, 2998])
    assert counted(result, *COUNTS) == [3003, 0, 3, 0]
    assert not is_exactly_once(result)


def test_the_judge_finds_a_record_after_a_later_one_of_its_key(kafka: KafkaService) -> None:
    first, second = 4, 4 + KEYS
    others = [number for number in range(3000) if number not in {first, second}]
    result = judged(kafka, [second, first, *others])
    assert counted(result, "lost", "duplicated", "out_of_order") == [0, 0, 1]
    assert is_exactly_once(result)


def test_a_lost_and_a_duplicated_record_do_not_cancel_out(kafka: KafkaService) -> None:
    result = judged(kafka, [*range(2999), 2998])
    assert counted(result, "rows_out", "lost", "duplicated") == [3000, 1, 1]


def test_the_judge_rejects_a_record_that_the_query_did_not_write(kafka: KafkaService) -> None:
    with pytest.raises(ServiceError, match="not in the source"):
        judged(kafka, [3000])


def test_the_judge_reads_only_committed_records(kafka: KafkaService) -> None:
    topic = new_topic(kafka)
    write(kafka, topic, range(10), **{"transactional.id": f"{topic}-aborted"}).abort_transaction(TIMEOUT_S)
    write(kafka, topic, range(10), **{"transactional.id": f"{topic}-committed"}).commit_transaction(TIMEOUT_S)
    left_open = write(kafka, topic, range(10, 20), **{"transactional.id": f"{topic}-open"})

    result = judged_topic(kafka, topic, 20)

    assert counted(result, "rows_out", "lost", "duplicated", "unfinished") == [10, 10, 0, 10]
    left_open.abort_transaction(TIMEOUT_S)
