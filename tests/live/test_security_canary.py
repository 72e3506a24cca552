"""Whole runs at debug level with canaries for secrets: none is in a log, an error, a representation, a record or a file."""

from __future__ import annotations

import base64
import contextlib
import dataclasses
import json
import os
import subprocess
import sys
import traceback
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
import pytest
import trustme
from typer.testing import CliRunner

from tests.live.broker_changes import create_acls
from tests.live.canaries import CANARIES, WAYS, leaks, log
from tests.live.pipeline import Tasks
from tests.live.rules.schedules import Play, at, die
from tests.live.security_support import CANARY_PASSWORD, CANARY_USER, KEY_PASSWORD, Right, documented
from tests.live.services import KafkaService
from tests.live.spark_query import Options, encoded
from tests.reader import records
from twopc.errors import TwoPhaseCommitError
from twopc.integration.cli import app
from twopc.sinks.kafka import KafkaSink, producer_pool
from twopc.testing.crash_points import InjectedFault

if TYPE_CHECKING:
    import io
    from collections.abc import Iterator

    from twopc.integration.services.kafka import LocalKafka

__all__ = ["log"]
pytestmark = pytest.mark.timeout(600)

ROWS = [["a", "b"], ["c"], []]


@pytest.fixture
def client(authority: tuple[Path, Path], secure_options: dict[str, Any]) -> dict[str, Any]:
    """A sink's options with a separate certificate, with librdkafka's most verbose log."""
    beside = authority[0].parent
    return {
        **secure_options,
        "kafka.ssl.certificate.location": str(beside / "client.pem"),
        "kafka.ssl.key.location": str(beside / "client.key"),
        "kafka.ssl.key.password": KEY_PASSWORD,
        "kafka.debug": "all",
    }


def allow_everything(kafka: LocalKafka, name: str, topic: str) -> None:
    roles = {"tasks", "driver"}
    rights = [right.named(name, topic) for right in documented() if right.role in roles]
    rights.append(Right("verify", "topic", topic, "Read", stops=True))
    create_acls(kafka.bootstrap_servers, [right.binding(CANARY_USER) for right in rights])


def test_the_search_finds_each_form_of_a_canary() -> None:
    for canary in CANARIES:
        assert leaks(f"x {canary} y")
        for before in ("", "a", "ab", "\0user\0"):
            assert leaks(base64.b64encode(f"{before}{canary} and more".encode())), before
        assert leaks(repr(f"\0{canary}".encode()))


@pytest.mark.whole
@pytest.mark.parametrize("way", ["PLAIN", "SCRAM-SHA-256", "OAUTHBEARER"])
def test_a_whole_run_at_debug_level_shows_no_secret(
    secured: LocalKafka,
    tmp_path: Path,
    client: dict[str, Any],
    way: str,
    log: io.StringIO,
    capfd: pytest.CaptureFixture[str],
) -> None:
    """Caught mutations: kafka-python's filter is not set; a pool's key shows the client's settings."""
    play = Play(KafkaService(secured.bootstrap_servers), tmp_path)
    plain = play.sink
    play.sink = dataclasses.replace(
        plain, bootstrap_servers=secured.address("SECURE"), options={**client, **WAYS[way]}, timeout_ms=20_000
    )
    seen: list[str | bytes] = []
    try:
        allow_everything(secured, play.name, play.topic)
        driver = play.driver()
        driver.process(play.batch(0), Tasks(play, ROWS))
        with pytest.raises(InjectedFault) as fault, at("driver.decided", die):
            play.driver().process(play.batch(1), Tasks(play, [["d"]]))
        restarted = play.driver()
        restarted.process(play.batch(1), Tasks(play, [["d"]]))
        seen += ["".join(traceback.format_exception(fault.value)), *_representations(play, driver, restarted)]
        if way != "OAUTHBEARER":  # the commands accept kafka.oauth_cb only as a name to import
            seen += _commands(play, tmp_path)
        seen += list(_failures(play.sink, tmp_path))
        kept = play.sink
        play.sink = plain
        assert play.visible() == {"a": 1, "b": 1, "c": 1, "d": 1}
        stored = [*play.decisions(), *play.acquisitions(), *play.handles(play.decisions()[-1].tasks)]
        play.sink = kept
        seen += [f"{record!r} {record}" for record in stored]
        seen += [msgspec.json.encode(record) for record in stored if isinstance(record, msgspec.Struct)]
        for topic in (play.sink.ledger, play.topic):
            seen += [
                part
                for message in records(secured.bootstrap_servers, topic)
                for part in (message.key() or b"", message.value() or b"")
            ]
    finally:
        play.sink = plain
        play.close()
    files = [path for path in tmp_path.rglob("*") if path.is_file() and path.name != "client.properties"]
    assert files
    seen += [path.read_bytes() for path in files]
    printed = capfd.readouterr()
    logged = log.getvalue()
    assert "SASL" in logged
    assert "Request" in logged  # kafka-python at debug level
    assert "INITPRODUCERID" in logged.upper()  # librdkafka, too
    for text in (*seen, logged, printed.out, printed.err):
        assert not leaks(text)


def _representations(play: Play, *drivers: Any) -> Iterator[str]:
    from twopc.integration.spark import exactly_once  # noqa: PLC0415 - this module imports Spark

    sink = play.sink
    with contextlib.closing(sink.create_committer()) as committer:
        each = exactly_once(sink, checkpoint_location="/nowhere")
        pool = next(iter(producer_pool._pools.values()))
        things = [
            sink,
            committer,
            committer.decision_log(),
            committer._client,
            committer._client._connection,
            each,
            each._options,
        ]
        things += [*drivers, pool, pool.key, *pool._ready, sink.settings if hasattr(sink, "settings") else sink]
        yield from (f"{thing!r} {thing} {getattr(thing, '__dict__', {}) if thing is each else ''}" for thing in things)


def _commands(play: Play, root: Path) -> Iterator[str]:
    """The output of the commands, with and without ``--json``, and when they fail."""
    file = root / "client.properties"
    file.write_text("".join(f"{name}={value}\n" for name, value in play.sink.options.items()))
    given = [
        "--bootstrap-servers",
        play.sink.bootstrap_servers,
        "--sink",
        play.name,
        "--config-file",
        str(file),
        "--timeout",
        "10",
    ]
    for words in (
        ["verify"],
        ["verify", "--json"],
        ["preflight", "--topic", play.topic, "--json"],
        ["migrate", "preflight"],
    ):
        result = CliRunner().invoke(app, [*words, *given])
        assert result.output
        yield result.output
    wrong = ["--option", f"kafka.sasl.password={CANARY_PASSWORD}x", "--option", CANARY_PASSWORD]
    yield CliRunner().invoke(app, ["preflight", *given, *wrong]).output


def _failures(sink: KafkaSink, root: Path) -> Iterator[str]:
    """The errors, with their causes, of options that are wrong in many ways."""
    other = root / "other.pem"
    trustme.CA().cert_pem.write_to_path(other)
    jaas = (
        f'org.apache.kafka.common.security.plain.PlainLoginModule required username="x" password="{CANARY_PASSWORD}";'
    )
    wrong = [
        {"kafka.ssl.ca.location": str(other)},
        {"kafka.ssl.ca.location": "/no/such/file"},
        {"kafka.ssl.key.password": f"{KEY_PASSWORD}x"},
        {"kafka.ssl.key.pem": KEY_PASSWORD},
        {"kafka.ssl.keystore.password": KEY_PASSWORD},
        {"kafka.sasl.jaas.config": jaas},
        {"kafka.sasl.jaas.config": CANARY_PASSWORD},
        {"sasl.password": CANARY_PASSWORD},
        {"kafka.sasl.pasword": CANARY_PASSWORD},
        {"kafka.no.such.option": CANARY_PASSWORD},
        {"kafka.sasl.oauthbearer.client.secret": CANARY_PASSWORD, "kafka.sasl.oauthbearer.method": "oidc"},
        {"kafka.security.protocol": "SASL_PLAINTEXT"},
    ]
    if "kafka.sasl.password" in sink.options:
        wrong.append({"kafka.sasl.password": f"{CANARY_PASSWORD}x"})
    for options in wrong:
        try:
            found = dataclasses.replace(sink, options={**sink.options, **options}, timeout_ms=3_000)
            with contextlib.closing(found.create_committer()) as committer:
                committer.inspect()
        except TwoPhaseCommitError as error:
            yield "".join(traceback.format_exception(error))
        except Exception as error:  # noqa: BLE001 - any error may contain a secret
            yield "".join(traceback.format_exception(error))
    missing = dataclasses.replace(sink, name=f"{sink.name}x", timeout_ms=5_000)
    with contextlib.closing(missing.create_committer()) as committer, pytest.raises(TwoPhaseCommitError) as denied:
        committer.inspect()
    yield "".join(traceback.format_exception(denied.value))


#: Python's root logger at debug level, in the driver and in each worker.
_SITE = "import logging\nlogging.basicConfig(level=logging.DEBUG)\n"


@pytest.mark.whole
def test_a_spark_query_at_debug_level_leaves_no_secrets_in_logs_checkpoint_or_event_log(
    secured: LocalKafka, tmp_path: Path, client: dict[str, Any]
) -> None:
    """Caught mutation: Py4J's filter is not set. The test ignores Spark's own data of tasks, which holds the pickled sink."""
    play = Play(KafkaService(secured.bootstrap_servers), tmp_path / "unused")
    allow_everything(secured, play.name, play.topic)
    play.close()
    for directory in ("work", "events", "site", "input"):
        (tmp_path / directory).mkdir()
    (tmp_path / "site" / "sitecustomize.py").write_text(_SITE)
    rows = "".join(json.dumps({"key": f"k{number}", "value": f"v{number}"}) + "\n" for number in range(30))
    (tmp_path / "input" / "0.json").write_text(rows)
    options = Options(
        bootstrap_servers=secured.address("SECURE"),
        name=play.name,
        sources=(),
        topic=play.topic,
        checkpoint=str(tmp_path / "checkpoint"),
        files=str(tmp_path / "input"),
        plan="shuffle",
        sink={"options": {**client, **WAYS["PLAIN"]}},
        settings={"write_by": "tasks"},
        spark={
            "spark.log.level": "DEBUG",
            "spark.eventLog.enabled": "true",
            "spark.eventLog.dir": f"file://{tmp_path}/events",
        },
    )
    root = Path(__file__).parents[2]
    environment = {**os.environ, "PYTHONPATH": f"{tmp_path / 'site'}:{root}"}
    program = [sys.executable, str(root / "tests" / "live" / "spark_query.py"), encoded(options)]
    done = subprocess.run(
        program, cwd=tmp_path / "work", env=environment, capture_output=True, timeout=500, check=False
    )
    said = (done.stdout + done.stderr).decode(errors="replace")
    assert done.returncode == 0, said[-3000:]
    assert len(list(records(secured.bootstrap_servers, play.topic))) == 30
    assert "Command to send" in said  # Py4J at debug level
    assert "DEBUG" in said
    assert not leaks(said)
    files = [
        path for directory in ("checkpoint", "events") for path in (tmp_path / directory).rglob("*") if path.is_file()
    ]
    assert any("twopc" in str(path) for path in files)
    assert any("events" in str(path) for path in files)
    for path in files:
        assert not leaks(path.read_bytes()), path
