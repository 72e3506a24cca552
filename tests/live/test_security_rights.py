"""The table of rights in docs/security.md: with them, each part does its work.

Without one of them, the part names the missing right.
"""

from __future__ import annotations

import contextlib
import json
import logging
import re
import uuid
from collections import Counter
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest
from confluent_kafka import Consumer, TopicPartition
from typer.testing import CliRunner

from tests.live.broker_changes import add_scram_user, create_acls
from tests.live.pipeline import Tasks, record_batch
from tests.live.rules.schedules import Play, at, die, work_of
from tests.live.security_support import PREFIXED, Right, documented
from tests.live.services import KafkaService
from tests.tasks import attempt_of, prepare
from twopc.errors import TwoPhaseCommitError
from twopc.files import LocalFiles
from twopc.integration.cli import app
from twopc.integration.migrate.handover import Handover, Handovers, Kind
from twopc.integration.spark.checkpoint import query_id, read_batch
from twopc.override import Overrides
from twopc.settings import Settings
from twopc.testing.crash_points import InjectedFault

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from twopc.integration.services.kafka import LocalKafka
    from twopc.sinks.kafka import KafkaSink

pytestmark = pytest.mark.timeout(600)

_NOT_JUDGED = 3
RIGHTS = documented()
ROWS, LATER = [["a", "b"], ["c"], []], [["d"], ["e"]]
ALL = Counter("abcde")
#: For each of these parts, the other parts whose rights its principal has, too.
AND_THOSE_OF = {
    "preflight": ("tasks", "driver"),
    "migrate preflight": ("tasks", "driver", "preflight"),
    "transactions commit": ("status",),
}
#: The rights that `make test` removes; `make whole` removes each right in turn.
SAMPLE = {
    "tasks: Write on topic orders-enriched",
    "driver: Read on topic twopc-ledger-orders",
    "cutover: Read on topic orders-enriched",
}


class Part:
    """One part of the toolkit at work, with a principal for each role that takes part."""

    roles: tuple[str, ...]
    #: The option before the sink's name in a command of this part; empty if the name has no option.
    option: tuple[str, ...] = ("--sink",)
    #: What follows the ledger's name in the names of the part's own topics; empty if it has none.
    prefix = ""

    def __init__(self, kafka: LocalKafka, root: Path, options: dict[str, Any]) -> None:
        self._kafka, self._options, self._root = kafka, options, root
        self.play = Play(KafkaService(kafka.bootstrap_servers), root)

    def rights(self, role: str) -> list[Right]:
        roles = (role, *AND_THOSE_OF.get(role, ()))
        return [right for right in RIGHTS if right.role in roles]

    def allow(self, role: str, rights: list[Right]) -> None:
        add_scram_user(self._kafka.bootstrap_servers, self.user(role), self.user(role))
        bindings = []
        for right in rights:
            named = right.named(self.play.name, self.play.topic)
            bindings.append(named.binding(self.user(role)))
            if self.prefix and named.name == self.play.sink.ledger:
                bindings.append(replace(named, name=f"{named.name}.{self.prefix}").binding(self.user(role), PREFIXED))
        create_acls(self._kafka.bootstrap_servers, bindings)

    def user(self, role: str) -> str:
        return f"{role.replace(' ', '-')}-{self.play.name}"

    def sink(self, role: str) -> KafkaSink:
        options = {**self._options, "kafka.sasl.username": self.user(role), "kafka.sasl.password": self.user(role)}
        return replace(
            self.play.sink, bootstrap_servers=self._kafka.address("SECURE"), options=options, timeout_ms=12_000
        )

    def command(self, role: str, *words: str) -> tuple[int, str]:
        sink, file = self.sink(role), self._root / "client.properties"
        file.write_text("".join(f"{name}={value}\n" for name, value in sink.options.items()))
        given = ["--bootstrap-servers", sink.bootstrap_servers, *self.option, sink.name, "--config-file", str(file)]
        result = CliRunner().invoke(app, [*words, *given, "--timeout", "12"])
        return result.exit_code, " ".join(result.output.split())

    def prepare(self) -> None:
        """Create the existing topics, as a principal that may do everything."""

    def work(self) -> str:
        """Do all of the part's work, and return the errors."""
        raise NotImplementedError

    def require_done(self) -> None:
        """Check that no row is missing or duplicated."""
        assert self.play.visible() == ALL
        assert self.play.open_transactions() == ()

    def run_plainly(self) -> None:
        driver = self.play.driver()
        driver.process(self.play.batch(0), Tasks(self.play, ROWS))
        driver.process(self.play.batch(1), Tasks(self.play, LATER))


class Query(Part):
    """A batch, a crash after the decision, its recovery, and a sweep."""

    roles = ("tasks", "driver")
    _has_crashed = False

    def work(self) -> str:
        play, tasks = self.play, self.sink("tasks")
        plain, play.sink = play.sink, self.sink("driver")
        try:
            if not self._has_crashed:
                play.driver().process(play.batch(0), Tasks(play, ROWS, sinks=[tasks]))
                orphan = attempt_of(work_of(play, 1, driver_epoch=0), play.name, 0)
                prepare(tasks, orphan, [record_batch(["never"])])
                with pytest.raises(InjectedFault), at("driver.decided", die):
                    play.driver().process(play.batch(1), Tasks(play, LATER, sinks=[tasks]))
                self._has_crashed = True
            play.driver().process(play.batch(1), Tasks(play, LATER, sinks=[tasks]))
        except TwoPhaseCommitError as error:
            return f"{type(error).__name__}: {error}"
        finally:
            play.sink = plain
            play.forget_worker()
        return ""


class Verify(Part):
    roles = ("verify",)

    def prepare(self) -> None:
        self.run_plainly()

    def work(self) -> str:
        status, said = self.command("verify", "verify")
        return said if status else ""


class Status(Part):
    roles = ("status",)
    option = ()

    def prepare(self) -> None:
        self.run_plainly()

    def work(self) -> str:
        status, said = self.command("status", "status")
        return said if status else ""


class Commit(Part):
    """The query has died after its decision."""

    roles = ("transactions commit",)
    option = ()

    def prepare(self) -> None:
        with pytest.raises(InjectedFault), at("driver.decided", die):
            self.play.driver().process(self.play.batch(0), Tasks(self.play, ROWS + LATER))

    def work(self) -> str:
        status, said = self.command("transactions commit", "transactions", "commit", "--yes")
        return said if status else ""


class Preflight(Part):
    """Return the findings that matter, without those that every single-broker cluster causes."""

    roles = ("preflight",)
    prefix = "preflight-"
    expected = re.compile(r"has 1 replica\b|min\.insync\.replicas=1")

    def prepare(self) -> None:
        self.run_plainly()

    def work(self) -> str:
        (role,) = self.roles
        status, said = self.command(role, *role.split(), "--topic", self.play.topic, "--json")
        assert status in {0, 1, 3}, said
        findings = json.loads(said[said.index("{") :])["findings"]
        wrong = [one for one in findings if one["result"] != "pass" and not self.expected.search(one["why"])]
        return "; ".join(f"{one['check']}: {one['why']}: {one['fix']}" for one in wrong)


class MigratePreflight(Preflight):
    roles = ("migrate preflight",)

    def prepare(self) -> None:
        """A group reads the output. Without the right Describe on it, brokers do not show it."""
        super().prepare()
        facts = {"bootstrap.servers": self.play.bootstrap_servers, "group.id": f"{self.play.name}-readers"}
        with contextlib.closing(Consumer({**facts, "log_level": 0})) as consumer:
            consumer.commit(offsets=[TopicPartition(self.play.topic, 0, 1)], asynchronous=False)


class Checkpoint(Part):
    """A query's checkpoint as Spark leaves it, with batch 0 done and batch 1 planned."""

    def prepare(self) -> None:
        root = self._root
        self.play.query_id = str(uuid.uuid4())
        (root / "metadata").write_text(json.dumps({"id": self.play.query_id}))
        for directory, batches in (("offsets", 2), ("commits", 1)):
            (root / directory).mkdir()
            for number in range(batches):
                (root / directory / str(number)).write_text(
                    f'v1\n{{"batchWatermarkMs":0,"batchTimestampMs":{number}}}\n{{"t":{{"0":{number}}}}}'
                )


class Cutover(Checkpoint):
    roles = ("cutover",)

    def work(self) -> str:
        words = ("migrate", "cutover", "--topic", self.play.topic, "--checkpoint", str(self._root), "--apply")
        status, said = self.command("cutover", *words)
        return said if status else ""

    def require_done(self) -> None:
        assert Handovers(LocalFiles(self._root / "twopc")).newest() is not None


class Rollback(Checkpoint):
    """The transactional query has died once batch 1 was decided."""

    roles = ("rollback",)

    def prepare(self) -> None:
        super().prepare()
        play, files = self.play, LocalFiles(self._root)
        first = read_batch(files, query_id(files), 0)
        handover = Handover(query_id=first.query_id, batch_id=0, offsets=first.offsets, kind=Kind.NOTHING)
        Handovers(LocalFiles(self._root / "twopc")).add(handover)
        driver = play.driver(Settings(overrides=Overrides(adopt_query_id=play.query_id)))
        with pytest.raises(InjectedFault), at("driver.decided", die):
            driver.process(read_batch(files, play.query_id, 1), Tasks(play, ROWS + LATER))

    def work(self) -> str:
        status, said = self.command("rollback", "migrate", "rollback", "--checkpoint", str(self._root))
        return said if status else ""


class Probe(Part):
    roles = ("probe",)

    def work(self) -> str:
        words = ("migrate", "probe", "--group", self.play.name, "--topic", self.play.topic, "--wait", "1")
        status, said = self.command("probe", *words)
        return "" if status == _NOT_JUDGED else said  # no reader runs

    def require_done(self) -> None:
        assert self.play.open_transactions() == ()


PARTS = (Query, Verify, Status, Commit, Preflight, MigratePreflight, Cutover, Rollback, Probe)
PART_OF = {role: part for part in PARTS for role in part.roles}


@pytest.fixture
def part(
    request: pytest.FixtureRequest, secured: LocalKafka, tmp_path: Path, secure_options: dict[str, Any]
) -> Iterator[Part]:
    made: Part = request.param(secured, tmp_path, secure_options)
    made.prepare()
    made.play.forget_worker()
    yield made
    made.play.close()


@pytest.mark.parametrize(
    "part",
    [pytest.param(part, marks=[pytest.mark.whole] if issubclass(part, Preflight) else []) for part in PARTS],
    indirect=True,
    ids=lambda part: part.__name__,
)
def test_each_component_does_all_of_its_work_with_its_documented_rights_alone(
    part: Part, caplog: pytest.LogCaptureFixture
) -> None:
    for role in part.roles:
        part.allow(role, part.rights(role))
    with caplog.at_level(logging.WARNING):
        assert not part.work()
    assert not [text for text in caplog.messages if re.search("AUTHORIZATION|authorized", text)]
    part.require_done()


@pytest.mark.parametrize(
    ("part", "right"),
    [
        pytest.param(
            PART_OF[right.role], right, marks=[] if str(right) in SAMPLE else [pytest.mark.whole], id=str(right)
        )
        for right in RIGHTS
        if right.role in PART_OF
    ],
    indirect=["part"],
)
def test_each_component_reports_any_missing_right_and_loses_or_duplicates_no_row_once_it_is_granted(
    part: Part, right: Right, caplog: pytest.LogCaptureFixture
) -> None:
    for role in part.roles:
        part.allow(role, [one for one in part.rights(role) if role != right.role or not one.includes(right)])
    with caplog.at_level(logging.WARNING):
        wrong = part.work()
    said = wrong if right.stops or isinstance(part, Preflight) else "\n".join(caplog.messages)
    named = right.named(part.play.name, part.play.topic)
    assert re.search(rf"\b{named.right}\b", said, re.IGNORECASE), said or "nothing went wrong"
    assert named.name in said, said
    assert bool(wrong) == (right.stops or isinstance(part, Preflight)), wrong
    part.allow(right.role, [one for one in part.rights(right.role) if one.includes(right)])
    assert not part.work()
    part.require_done()


@pytest.mark.whole
@pytest.mark.parametrize("part", [Probe], indirect=True)
def test_a_probe_of_its_own_topic_needs_rights_only_on_its_prefix(part: Part) -> None:
    rights = [right for right in part.rights("probe") if right.on != "topic"]
    part.allow("probe", rights)
    words = ("migrate", "probe", "--group", part.play.name, "--wait", "1")
    status, said = part.command("probe", *words)
    assert status not in {0, _NOT_JUDGED} and f"{part.play.sink.ledger}.probe-" in said
    own = Right("probe", "topic", f"{part.play.sink.ledger}.probe-", "", stops=True)
    bindings = [
        replace(own, right=right).binding(part.user("probe"), PREFIXED) for right in ("Create", "Write", "Delete")
    ]
    create_acls(part._kafka.bootstrap_servers, bindings)
    status, said = part.command("probe", *words)
    assert status == _NOT_JUDGED, said
    part.require_done()


@pytest.mark.whole
@pytest.mark.parametrize("part", [MigratePreflight], indirect=True)
def test_the_groups_that_a_principal_may_describe_are_listed(part: Part) -> None:
    part.allow("migrate preflight", part.rights("migrate preflight"))
    assert not part.work()
    part.allow("migrate preflight", [Right("migrate preflight", "group", "", "Describe", stops=False)])
    assert f"{part.play.name}-readers" in part.work()


@pytest.mark.whole
@pytest.mark.parametrize("part", [Status], indirect=True)
def test_status_says_which_permission_is_missing_to_find_a_transaction_that_holds_readers_back(part: Part) -> None:
    play, name = part.play, f"{part.play.name}-foreign"
    part.allow("status", part.rights("status"))
    foreign = play.open_foreign(name, play.topic, 0)
    try:
        status, said = part.command("status", "status")
        assert status == 0 and f"Allow Read on the topic {play.topic}" in said and name not in said
        part.allow("status", [Right("status", "topic", play.topic, "Read", stops=False)])
        _, said = part.command("status", "status")
        assert "has an open transaction there" in said and "Allow Describe" in said and name not in said
        part.allow("status", [Right("status", "transactional ids", name, "Describe", stops=False)])
        _, said = part.command("status", "status")
        assert f"another program, {name}, has an open transaction" in said
    finally:
        foreign.abort_transaction(10)
