"""The number of records compared with the decided rows: a difference is an error only if it proves a loss."""

from __future__ import annotations

import io
import json
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import pytest
from rich.console import Console

from tests.unit.test_verify_command import report
from twopc.errors import ConfigurationError
from twopc.integration.connection_options import connection_options
from twopc.integration.verify import tally
from twopc.integration.verify.cluster import Bounds
from twopc.integration.verify.findings import Finding, Kind, Severity
from twopc.integration.verify.tail import Tail
from twopc.integration.verify.tally import Expected, check_count

if TYPE_CHECKING:
    from twopc.integration.verify.cluster import Cluster

TOPIC = "out"
ONLY = frozenset({TOPIC})
OTHER = frozenset({"other"})


class Topic:
    """A cluster that only has topic settings."""

    sink = None

    def __init__(self, *, compacted: bool | None) -> None:
        self._compacted = compacted

    def is_compacted(self, topic: str) -> bool | None:
        del topic
        return self._compacted


@pytest.fixture(autouse=True)
def _no_broker(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tally, "describe_strays", lambda *_: "these")


def count(
    records: dict[str, int],
    proven: dict[frozenset[str], int],
    decided: dict[frozenset[str], int],
    *,
    start: int = 0,
    open_offsets: int = 0,
    compacted: bool | None = False,
    incomplete: str | None = None,
    sole_writer: bool = False,
) -> list[Finding]:
    """The findings for topics with these numbers of records."""
    cluster = cast("Cluster", Topic(compacted=compacted))
    topics = {topic: Tail(records=number) for topic, number in records.items()}
    for tail in topics.values():
        tail.update(Bounds({0: start}, {0: 100}, {0: 100 + open_offsets}))
    expected = Expected(proven=proven, decided=decided, incomplete=incomplete)
    return list(check_count(cluster, topics, expected, sole_writer=sole_writer))


def kinds(records: int, proven: int, decided: int, **circumstances: Any) -> list[Kind]:
    """The kinds of findings for one topic."""
    found = count({TOPIC: records}, {ONLY: proven}, {ONLY: decided}, **circumstances)
    return [finding.kind for finding in found]


@pytest.mark.parametrize(
    ("records", "found"),
    [(9, [Kind.RECORDS_MISSING]), (10, []), (11, []), (12, []), (13, [Kind.RECORDS_EXTRA])],
)
def test_records_of_a_batch_decided_during_the_check_may_be_missing_or_present(records: int, found: list[Kind]) -> None:
    assert kinds(records, proven=10, decided=12) == found


def test_extra_records_are_an_error_if_the_sink_is_the_only_writer() -> None:
    assert kinds(13, 12, 12, sole_writer=True) == [Kind.RECORDS_UNDECIDED]


@pytest.mark.parametrize(
    "circumstance",
    [
        {"start": 1},
        {"compacted": True},
        {"incomplete": "older decisions were truncated"},
    ],
)
def test_missing_records_are_not_an_error_if_another_circumstance_explains_them(circumstance: dict[str, Any]) -> None:
    assert kinds(3, 10, 10, **circumstance) == [Kind.NOT_COMPARED]


@pytest.mark.parametrize(
    ("records", "found"), [(9, [Kind.NOT_COMPARED]), (10, []), (12, []), (13, [Kind.RECORDS_EXTRA])]
)
def test_a_loss_is_not_proven_if_the_topics_settings_are_unknown(records: int, found: list[Kind]) -> None:
    """Without DescribeConfigs, an ordinary compacted topic looked like a loss. Compaction adds no record, though."""
    assert kinds(records, 10, 12, compacted=None) == found
    if records == 9:
        [finding] = count({TOPIC: records}, {ONLY: 10}, {ONLY: 12}, compacted=None)
        assert "out may be compacted" in finding.text and "allow DescribeConfigs on the topic out" in finding.text


def test_records_behind_an_open_transaction_are_not_lost() -> None:
    assert kinds(3, 10, 10, open_offsets=2) == [Kind.HELD_BACK, Kind.NOT_COMPARED]


def test_extra_records_in_one_topic_do_not_hide_a_loss_in_another_topic() -> None:
    rows = {ONLY: 10, OTHER: 10}
    found = count({TOPIC: 9, "other": 11}, rows, rows)
    assert [(one.kind, one.where) for one in found] == [(Kind.RECORDS_EXTRA, "other"), (Kind.RECORDS_MISSING, TOPIC)]
    (found_of_one,) = count({TOPIC: 9}, rows, rows)
    assert (found_of_one.kind, found_of_one.where) == (Kind.RECORDS_MISSING, TOPIC)


def test_topics_that_share_transactions_are_counted_together() -> None:
    rows = {ONLY: 4, ONLY | OTHER: 6, frozenset({"third"}): 2}
    assert not count({TOPIC: 9, "other": 1, "third": 2}, rows, rows)
    found = count({TOPIC: 8, "other": 1, "third": 2}, rows, rows)
    assert [(one.kind, one.where) for one in found] == [(Kind.RECORDS_MISSING, "other, out")]
    (found_of_one,) = count({TOPIC: 9}, rows, rows)
    assert found_of_one.kind is Kind.NOT_COMPARED
    assert "also wrote to other" in found_of_one.text


def test_only_errors_fail_a_report_and_it_shows_all_findings() -> None:
    warning = Finding(Kind.ORPHAN_OPEN, "s.1.w.0", "a [odd] text")
    error = Finding(Kind.DUPLICATES, "t", "doubled")
    assert report().is_ok and report(warning).is_ok and not report(warning, error).is_ok
    facts = json.loads(json.dumps(report(warning, error).facts()))
    assert (facts["ok"], facts["seconds"], facts["topics"]) == (False, 1.2, ["t"])
    assert facts["findings"][0] == {
        "kind": "orphan_open",
        "severity": "warning",
        "where": "s.1.w.0",
        "text": "a [odd] text",
    }
    shown = io.StringIO()
    report(warning, error).show(Console(file=shown, width=100))
    assert "warning s.1.w.0: a [odd] text (orphan_open)" in shown.getvalue()
    assert "error t: doubled (duplicates)" in shown.getvalue()


def test_the_verdict_lists_what_was_not_compared() -> None:
    not_compared = Finding(Kind.NOT_COMPARED, "t", "the number of records (7, for 2 decided rows): the ledger is short")
    shown = io.StringIO()
    report(not_compared).show(Console(file=shown, width=100))
    last = shown.getvalue().splitlines()[-1]
    assert last == (
        "The comparisons found no errors. Not compared: t: the number of records (7, for 2 decided rows): the ledger is "
        "short."
    )
    facts = report(not_compared).facts()
    assert (facts["ok"], facts["all_compared"], facts["verdict"]) == (True, False, last)
    assert report().facts()["all_compared"]
    assert report().verdict == "No errors found."


def test_findings_that_violate_exactly_once_are_errors() -> None:
    errors = {kind for kind in Kind if kind.severity is Severity.ERROR}
    assert {Kind.DUPLICATES, Kind.DECIDED_LOST, Kind.UNDECIDED_VISIBLE, Kind.RECORDS_MISSING} <= errors
    assert not errors & {Kind.NOT_COMPARED, Kind.DECIDED_OPEN, Kind.DECIDED_UNKNOWN, Kind.RECORDS_EXTRA}


def test_connection_options_on_the_command_line_override_those_in_the_file(tmp_path: Path) -> None:
    file = tmp_path / "client.properties"
    file.write_text("# a comment\n\nsasl.password = a=b \nsasl.username=ann\n")
    assert connection_options(["kafka.sasl.username=bob"], file) == {
        "kafka.sasl.password": "a=b",
        "kafka.sasl.username": "bob",
    }


def test_an_invalid_option_is_not_shown_because_it_may_be_a_password(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="not in the form key=value") as caught:
        connection_options(["secret"], None)
    assert "secret" not in str(caught.value)
    with pytest.raises(ConfigurationError, match="cannot be read"):
        connection_options([], tmp_path / "absent")


def test_the_docs_list_every_kind_of_finding_with_its_severity() -> None:
    text = (Path(__file__).parents[2] / "docs" / "verify.md").read_text()
    rows = re.findall(r"^\| (`[a-z_`, ]+`) \| (error|warning|info) \|", text, re.MULTILINE)
    named = {kind: severity for kinds, severity in rows for kind in re.findall(r"[a-z_]+", kinds)}
    assert named == {kind.value: kind.severity.value for kind in Kind}
