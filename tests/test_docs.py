"""The code in the documents runs, and their lists match the code."""

from __future__ import annotations

import contextlib
import re
import sqlite3
from dataclasses import fields
from pathlib import Path

import typer
import yaml

from tests.contract import guide
from twopc import crash_points
from twopc.integration.cli import app
from twopc.integration.history.diagnose import RULES
from twopc.integration.history.failing import FAILING
from twopc.sinks.kafka.java_options import ANSWERS, LOGIN_MODULES
from twopc.testing.contract import Case
from twopc.testing.kill_loop import Moment
from twopc.testing.kill_loop.kills import OF_CONNECT

DOCS = Path(__file__).parent.parent / "docs"


def test_the_guide_to_writing_a_sink_runs_as_written(tmp_path: Path) -> None:
    try:
        exec(guide.code(), {"__name__": "writing_a_sink", "directory": str(tmp_path)})  # noqa: S102 - the code is in our own documentation
    finally:
        crash_points.disarm()
    with contextlib.closing(sqlite3.connect(tmp_path / "payments.db")) as db:
        assert db.execute("SELECT count(*), sum(cents) FROM payments").fetchone() == (4, 1000)
        assert db.execute("SELECT count(*) FROM twopc_staged").fetchone() == (0,)


def test_the_code_on_the_page_about_testing_a_sink_runs() -> None:
    text = (DOCS / "test-your-sink.md").read_text()
    blocks = re.findall(r"^```python\n(.*?)^```", text, re.MULTILINE | re.DOTALL)
    assert len(blocks) == 6
    for block in blocks:  # defines tests, calls none
        exec(compile(block, "test-your-sink.md", "exec", dont_inherit=True), {"__name__": "page"})  # noqa: S102 - the code is in our own documentation


def test_the_page_on_testing_a_sink_lists_every_moment_every_victim_and_every_field_of_a_case() -> None:
    text = (DOCS / "test-your-sink.md").read_text()
    assert re.findall(r"^\| `(\w+)` \| [^|]+ \| [^|]+ \|$", text, re.MULTILINE) == [
        part.value for part in (Moment.AFTER, Moment.DURING, Moment.BEFORE, Moment.RANDOM, *OF_CONNECT)
    ]
    assert all(f"`{part.name}`" in text for part in fields(Case))


def test_the_protocol_document_numbers_every_crash_point_in_order() -> None:
    text = (DOCS / "protocol.md").read_text()
    listed = re.findall(r"^\| (\d+) \| `((?:driver|task)\.[a-z_]+)` \|", text, re.MULTILINE)
    assert [name for _, name in listed] == [*crash_points.POINTS, *crash_points.OCCASIONAL]
    assert [int(number) for number, _ in listed] == list(range(1, 1 + len(listed)))


def test_the_protocol_document_refers_to_a_test_for_each_of_the_fourteen_rules() -> None:
    text = (DOCS / "protocol.md").read_text()
    named = re.findall(r"^\| (\d+) \|.*\| `(tests/live/rules/test_rule_\d\d_\w+\.py)` \|$", text, re.MULTILINE)
    assert [int(number) for number, _ in named] == list(range(1, 15))
    missing = [path for _, path in named if not (DOCS.parent / path).is_file()]
    assert missing == []


def test_the_security_page_lists_every_java_option_with_the_advice_that_the_code_gives() -> None:
    text = (DOCS / "security.md").read_text()
    listed = {
        name: answer
        for names, answer in re.findall(r"^\| (`.+?) \| (.+) \|$", text, re.MULTILINE)
        for name in re.findall(r"`([^`]+)`", names)
    }
    modules = {
        name: ". ".join(filter(None, (module.settings, module.advice))) for name, module in LOGIN_MODULES.items()
    }
    assert {**ANSWERS, **modules}.items() - listed.items() == set()


def test_every_entry_in_the_runbook_gives_an_action_and_refers_to_a_test_that_provokes_its_symptom() -> None:
    text = (DOCS / "operations.md").read_text()
    entries = re.findall(
        r"^### (.+?)\n(.*?)(?=^##)", text.partition("## Entries by symptom")[2], re.MULTILINE | re.DOTALL
    )
    symptoms = entries[: [title for title, _ in entries].index("A bad record stops the query") + 1]
    assert len(symptoms) > 10
    for title, entry in symptoms:
        assert all(f"**{part}:**" in entry for part in ("You see", "Risk", "Now", "Shown by")), title
        named = re.findall(r"`(tests/[\w/]+\.py)::(\w+)`", entry)
        assert named, title
        for path, test in named:
            assert f"def {test}(" in (DOCS.parent / path).read_text(), (title, test)
        assert set(re.findall(r"`twopc ([a-z]+)", entry)) & _commands(), title


def test_the_runbook_refers_to_existing_commands_rules_and_alerts() -> None:
    text = (DOCS / "operations.md").read_text()
    assert set(re.findall(r"`twopc ([a-z]+)", text)) <= _commands()
    judged = {name for named in re.findall(r"rules? (`[^;.\n]+)", text) for name in re.findall(r"`([a-z ]+)`", named)}
    assert (
        {rule.name for rule in FAILING}
        <= judged
        <= {rule.name for rule in RULES} | {"failures", "consecutive", "stalled"}
    )
    alerts = yaml.safe_load((DOCS.parent / "deploy" / "prometheus" / "alerts.yml").read_text())["groups"][0]["rules"]
    assert set(re.findall(r"`(Twopc\w+)`", text)) == {rule["alert"] for rule in alerts}


def _commands() -> set[str]:
    """The ``twopc`` commands, including the groups."""
    return set(typer.main.get_command(app).commands)  # type: ignore[attr-defined]
