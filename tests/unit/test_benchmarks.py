"""The benchmark's own figures: medians and ratios, verdicts, charts, and the blocks of the documents."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any
from xml.etree import ElementTree as ET

import msgspec
import pytest

from benchmarks import counting
from benchmarks.chart import Series, curves
from benchmarks.charts import draw
from benchmarks.counting import Count, WrongCountError
from benchmarks.decision import LEDGER_KIB, STATE_KIB
from benchmarks.goals import GOALS, Goal, Verdict
from benchmarks.groups import GROUPS, Group
from benchmarks.lake_tables import SmallDeltaFiles, SmallFiles, SmallIcebergFiles, rows_of
from benchmarks.many import DRIVER_CONNECTIONS, IDS, LEDGER_PARTITIONS, REQUESTS, WORKER_CONNECTIONS
from benchmarks.measured import TWO_PHASES, TWOPC, Case, Missing, MissingError, Results, Spread, read_results
from benchmarks.pages import PAGES, RESULTS, ChangedRunError, filled, write_pages
from benchmarks.planning import planning_table
from benchmarks.report import lines
from benchmarks.run import chosen, run_group
from benchmarks.settings import Settings, parsed
from benchmarks.small_files import case_name
from benchmarks.trigger import COMMIT, READ, trigger_rule
from benchmarks.turns import in_turn

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

SPARK = "Spark's own sink (at least once)"


@pytest.fixture(autouse=True)
def _level_of_a_process_of_its_own() -> Iterator[None]:
    """A group sets the log level of the process that runs the group, which is this process here."""
    sinks = logging.getLogger("sinks")
    before = sinks.level
    yield
    sinks.setLevel(before)


def case(name: str = "100 rows", **samples: list[float]) -> Case:
    return sampled(name, samples)


def sampled(name: str, samples: dict[str, list[float]]) -> Case:
    return Case(name=name, unit="ms", samples={TWOPC: [12, 30, 10], SPARK: [10, 10, 20], **samples}, x=100)


def results(*cases: Case) -> Results:
    heading: dict[str, Any] = {"date": "2026-01-01", "commit": "abc", "cores": 2, "processor": "p", "memory GiB": 24}
    heading |= {"system": "s", "load at the start": 0.1, "python": "3", "settings": "the defaults"}
    return Results(group="streaming", title="T", heading=heading, rounds=3, cases=list(cases), x_label="rows")


def test_a_ratio_is_computed_round_by_round_and_not_from_the_medians() -> None:
    assert case().spread(TWOPC) == Spread(12, 10, 30)
    assert case().ratio(TWOPC, SPARK) == Spread(1.2, 0.5, 3)


def test_no_ratio_is_computed_for_a_side_without_a_sample_in_each_round() -> None:
    with pytest.raises(ValueError, match="shorter"):
        case(other=[1]).ratio(TWOPC, "other")


def test_a_table_has_a_line_for_each_side_and_no_ratio_of_a_side_to_itself() -> None:
    assert lines(case()) == [
        ("100 rows", TWOPC, "12 (10-30) ms", "", ""),
        ("", SPARK, "10 (10-20) ms", "1.2 (0.5-3)", ""),
    ]


def test_results_are_the_same_after_they_are_written_and_read(tmp_path: Path) -> None:
    kept = results(case())
    kept.write(tmp_path)
    assert read_results(tmp_path, "streaming") == kept
    assert read_results(tmp_path, "other") is None


def test_a_goal_is_met_at_its_limit_and_missed_above_it_and_unknown_without_results() -> None:
    goal = next(one for one in GOALS if (one.group, one.case) == ("streaming", "100 rows"))
    assert goal.verdict(results(case())) is Verdict.MET
    assert goal.verdict(results(case(twopc=[12.1, 30, 10]))) is Verdict.MISSED
    assert goal.verdict(results()) is Verdict.UNKNOWN
    assert goal.verdict(None) is Verdict.UNKNOWN


def test_a_goal_for_two_phases_uses_the_default_if_that_is_two_phases() -> None:
    goal = next(one for one in GOALS if one.side == TWO_PHASES and one.case == "2,000 rows")
    assert goal.verdict(results(case("2,000 rows"))) is Verdict.MET
    slow = sampled("2,000 rows", {TWO_PHASES: [100, 100, 100]})
    assert goal.verdict(results(slow)) is Verdict.MISSED


def test_a_rate_below_its_limit_misses_the_goal() -> None:
    goal = Goal(says="", group="g", case="100 rows", to=SPARK, limit=1.2, at_most=False)
    assert goal.verdict(results(case())) is Verdict.MET
    assert goal.verdict(results(case(twopc=[11, 30, 10]))) is Verdict.MISSED


def test_a_fact_can_be_a_goal() -> None:
    goal = Goal(says="", group="g", case="c", to=None, limit=100, fact="MiB")
    kept = Case(name="c", unit="ms", samples={TWOPC: [1]}, facts={"MiB": {TWOPC: 101.0}})
    assert (goal.verdict(results(kept)), goal.figure(results(kept))) == (Verdict.MISSED, "101")


def test_the_ratio_of_two_sides_of_a_fact_can_be_a_goal() -> None:
    goal = Goal(says="", group="g", case="c", to=SPARK, limit=1.25, fact="ms")
    kept = Case(name="c", unit="ms", samples={TWOPC: [1]}, facts={"ms": {TWOPC: 163.0, SPARK: 127.0}})
    assert (goal.verdict(results(kept)), goal.figure(results(kept))) == (Verdict.MISSED, "1.28")
    one_sided = Case(name="c", unit="ms", samples={TWOPC: [1]}, facts={"ms": {TWOPC: 163.0}})
    assert goal.verdict(results(one_sided)) is Verdict.UNKNOWN


def test_every_goal_refers_to_an_existing_case() -> None:
    cases = {group.name: group.cases(Settings(whole=True)) for group in GROUPS}
    assert [goal for goal in GOALS if goal.case not in cases[goal.group]] == []


def test_a_chart_is_valid_and_contains_every_point_and_both_color_schemes() -> None:
    points = [(1.0, Spread(3, 1, 10)), (1e6, Spread(0.2, 0.2, 0.2)), (10.0, Spread(0, 0, 0))]
    text = curves("T & <t>", "x", "ms", [Series("s < t", points), Series("empty", [])])
    root = ET.fromstring(text)  # noqa: S314 - the SVG is our own
    circles = root.findall(".//{*}circle")
    assert len(circles) == 2
    assert all(0 <= float(one.attrib["cx"]) <= 640 and 0 <= float(one.attrib["cy"]) <= 360 for one in circles)
    assert "prefers-color-scheme: dark" in text
    assert curves("T", "x", "ms", []) == ""


def test_a_chart_is_drawn_for_a_groups_curve_and_each_fact_but_not_for_a_single_case(tmp_path: Path) -> None:
    cases = [
        Case(name=str(x), unit="ms", samples={TWOPC: [x]}, x=x, facts={"KiB / batch": {TWOPC: x}}) for x in (1.0, 10.0)
    ]
    names = [file.name for file in draw(results(*cases), tmp_path)]
    assert names == ["streaming.svg", "streaming-kib-batch.svg"]
    assert draw(results(cases[0]), tmp_path) == []


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_the_figures_on_a_page_match_the_kept_results(page: Path) -> None:
    assert filled(page.read_text()) == page.read_text(), 'make bench ARGS="--pages"'


def test_a_block_is_replaced_and_the_text_around_it_kept(tmp_path: Path) -> None:
    page = "a\n<!-- bench:streaming -->\nold\n<!-- /bench -->\nb\n<!-- bench:goals -->\n<!-- /bench -->\nc\n"
    absent = filled(page, tmp_path)
    assert absent.startswith(
        'a\n<!-- bench:streaming -->\n*Not measured yet:* `make bench ARGS="--only streaming"`.\n<!-- /bench -->\nb\n'
    )
    assert "not measured" in absent
    results(case()).write(tmp_path)
    present = filled(page, tmp_path)
    assert "| 100 rows | twopc | 12 (10-30) ms |" in present
    assert "| 1.2 (0.5-3) | met |" in present
    assert filled(present, tmp_path) == present
    assert filled("no block", tmp_path) == "no block"


def test_a_brief_block_shows_the_times_but_not_the_other_measurements(tmp_path: Path) -> None:
    facts = {"trigger time, ms": {TWOPC: 1_234.0}}
    results(Case(name="100 rows", unit="ms", samples={TWOPC: [12, 30, 10]}, facts=facts)).write(tmp_path)
    whole, brief = (filled(f"<!-- bench:streaming{part} -->\n<!-- /bench -->", tmp_path) for part in ("", " brief"))
    for text in (whole, brief):
        assert "The benchmark ran on 2026-01-01 at commit abc, in 3 rounds." in text
        assert "| 100 rows | twopc | 12 (10-30) ms |" in text
    assert "| trigger time, ms | twopc | 1,234 |" in whole
    assert "trigger time" not in brief


def test_the_text_of_a_chart_gives_the_measurement_and_its_subjects(tmp_path: Path) -> None:
    facts = {"driver memory, MiB": {TWOPC: 30.0}}
    samples: dict[str, list[float]] = {TWOPC: [1], SPARK: [2]}
    kept = results(*(Case(name=f"{x}", unit="ms", samples=samples, x=x, facts=facts) for x in (10, 100)))
    kept.write(tmp_path)
    draw(kept, tmp_path)
    page = filled("<!-- bench:streaming -->\n<!-- /bench -->", tmp_path)
    assert f"The chart shows T (ms) against the {kept.x_label} for {TWOPC} and {SPARK}.](results/streaming.svg)" in page
    memory = f"The chart shows driver memory (MiB) against the {kept.x_label} for {TWOPC}."
    memory += "](results/streaming-driver-memory-mib.svg)"
    assert memory in page


def test_a_single_round_is_described_in_the_singular(tmp_path: Path) -> None:
    msgspec.structs.replace(results(case()), rounds=1).write(tmp_path)
    assert ", in 1 round." in filled("<!-- bench:streaming -->\n<!-- /bench -->", tmp_path)


def measured_at(commit: str, directory: Path, *, rounds: int = 3) -> None:
    kept = results(case())
    msgspec.structs.replace(kept, heading={**kept.heading, "commit": commit}, rounds=rounds).write(directory)


@pytest.mark.parametrize("blocks", [("streaming",), ("streaming", "streaming brief"), ("goals",)])
def test_a_new_run_of_uncommitted_code_is_refused_and_no_page_changes(blocks: tuple[str, ...], tmp_path: Path) -> None:
    text = "\n".join(f"<!-- bench:{block} -->\nold\n<!-- /bench -->" for block in blocks)
    page, other = tmp_path / "page.md", tmp_path / "other.md"
    page.write_text(text)
    other.write_text("<!-- bench:redis -->\n<!-- /bench -->")
    measured_at("abc-dirty", tmp_path)
    with pytest.raises(
        ChangedRunError, match=r"'streaming'.*2026-01-01 at commit abc with uncommitted.*--only streaming"
    ):
        write_pages(tmp_path, [other, page])
    assert page.read_text() == text
    assert "Not measured" not in other.read_text()
    measured_at("abc", tmp_path)
    assert write_pages(tmp_path, [other, page]) == [other, page]


def test_a_run_of_uncommitted_code_that_a_page_shows_stays_until_the_next_run(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    measured_at("abc-dirty", tmp_path)
    page.write_text(
        filled("<!-- bench:streaming -->\n<!-- /bench -->\n<!-- bench:redis -->\n<!-- /bench -->", tmp_path)
    )
    assert "at commit abc with uncommitted changes, in 3 rounds." in page.read_text()
    assert write_pages(tmp_path, [page]) == []
    measured_at("abc-dirty", tmp_path, rounds=4)
    with pytest.raises(ChangedRunError, match="in 4 rounds"):
        write_pages(tmp_path, [page])


def test_a_block_for_an_unknown_group_causes_an_error(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="no group"):
        filled("<!-- bench:other -->\n<!-- /bench -->", tmp_path)


def test_groups_and_cases_can_be_selected_by_parts_of_their_names() -> None:
    assert [group for group, _ in chosen((), Settings(whole=True))] == list(GROUPS)
    assert [group for group, _ in chosen((), Settings())] == [group for group in GROUPS if group.by_default]
    assert [(group.name, parts) for group, parts in chosen(["streaming:2000", "streaming:100rows"], Settings())] == [
        ("streaming", ("2000", "100rows"))
    ]
    with pytest.raises(ValueError, match="no group 'other': the groups are streaming"):
        chosen(["other"], Settings())
    assert Settings(only=("2000",)).wants("2,000 rows")
    assert not Settings(only=("2000",)).wants("100 rows")
    assert not Settings(only=("4",)).wants("64 tasks")
    assert Settings().wants("100 rows")


def test_a_missing_case_causes_an_error_that_lists_the_cases_of_its_group() -> None:
    with pytest.raises(
        ValueError, match=r"'shuffled' has no case that begins with '300'.* 2 partitions; 64 partitions"
    ) as found:
        chosen(["shuffled:64", "shuffled:300"], Settings())
    assert str(found.value).endswith("With --whole, they are also: 16 partitions; 1,000 partitions")
    with pytest.raises(ValueError, match=r"are: write phase$"):  # a group with one case, to which --whole adds none
        chosen(["write:read"], Settings())


def test_a_case_that_exists_only_in_whole_runs_can_be_selected_only_with_whole() -> None:
    with pytest.raises(ValueError, match="With --whole"):
        chosen(["shuffled:1000"], Settings())
    assert chosen(["shuffled:1000"], Settings(whole=True))[0][1] == ("1000",)


@pytest.mark.parametrize("quick", [False, True])
@pytest.mark.parametrize("group", GROUPS, ids=lambda group: group.name)
def test_each_group_lists_its_cases_and_its_kept_results_belong_only_to_them(group: Group, *, quick: bool) -> None:
    names = group.cases(Settings(whole=True, quick=quick))
    assert names
    assert all(chosen([f"{group.name}:{name}"], Settings(whole=True, quick=quick)) for name in names)
    kept = read_results(RESULTS, group.name)
    if kept is not None and not quick:
        assert {one.name for one in kept.cases} <= set(names)


def test_a_run_with_a_single_case_measures_only_that_case() -> None:
    cases = {"100 rows": 100, "2,000 rows": 2000}
    assert list(Settings(only=("2000",)).wanted(cases)) == [("2,000 rows", 2000)]
    assert list(Settings().wanted(cases)) == list(cases.items())


def test_settings_are_parsed_as_json_or_as_text() -> None:
    assert parsed(["staging=true", "write_by=tasks", "listeners=[]"]) == {
        "staging": True,
        "write_by": "tasks",
        "listeners": [],
    }
    with pytest.raises(ValueError, match="name=value"):
        parsed(["write_by"])


def test_a_failed_setup_is_reported_and_earlier_measurements_are_kept(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def measure(_: Settings) -> Any:
        yield case()
        yield Missing(name="one", reason="no such package")
        raise MissingError("no broker")

    monkeypatch.setattr(Group, "measure", lambda _, settings: measure(settings))
    found = run_group(GROUPS[0], Settings(), {})
    assert [one.name for one in found.cases] == ["100 rows"]
    assert [(one.name, one.reason) for one in found.missing] == [("one", "no such package"), ("streaming", "no broker")]


def test_the_planning_table_lies_on_the_lines_through_the_measured_values() -> None:
    def curve(group: str, *facts: dict[str, float]) -> Results:
        cases = [
            Case(name=str(x), unit="ms", samples={TWOPC: [1]}, x=x, facts={k: {TWOPC: v} for k, v in one.items()})
            for x, one in zip((1, 11), facts, strict=True)
        ]
        return Results(group=group, title="", heading={}, rounds=1, cases=cases)

    small = {DRIVER_CONNECTIONS: 9.0, LEDGER_PARTITIONS: 9.0, IDS: 3.0, REQUESTS: 30.0, WORKER_CONNECTIONS: 4.0}
    large = {**small, DRIVER_CONNECTIONS: 99.0, LEDGER_PARTITIONS: 99.0, IDS: 33.0}
    many = curve("many", small, large)
    decision = curve(
        "decision",
        {"requests": 20.0, LEDGER_KIB: 1.0, STATE_KIB: 1.0},
        {"requests": 40.0, LEDGER_KIB: 11.0, STATE_KIB: 6.0},
    )
    table = planning_table(many, decision).splitlines()
    # 9 connections from the driver and 4 from each of 2 workers; 20 + 2 requests from the driver and 10 from each task;
    # (2 + 1.5) KiB per batch, 86,400 batches per day.
    assert table[2] == "| 1 | 1,000 | 2 | 1 | 17 | 5 | 9 | 42 | 295 |"
    assert "Not measured yet" in planning_table(many, None)
    assert "Not measured yet" in planning_table(curve("many", small, large), results(case()))


def test_the_rule_for_the_trigger_lies_on_the_lines_through_the_measured_values() -> None:
    def of(name: str, x: int, **samples: list[float]) -> Case:
        return Case(name=name, unit="ms", samples=samples, x=x)

    cases = [
        of("Delta, a batch with 1 version", 1, twopc=[900]),
        of("Iceberg, a batch with 1 snapshot", 1, twopc=[10, 11, 12], pyiceberg=[1, 1, 1]),
        of("Iceberg, read from 1 file", 1, pyiceberg=[20, 20, 20]),
        of("Iceberg, a batch with 101 snapshots", 101, twopc=[61, 61, 61], pyiceberg=[1, 1, 1]),
        of("Iceberg, read from 101 files", 101, pyiceberg=[220, 220, 220]),
    ]
    kept = Results(group="smallfiles", title="", heading=results().heading, rounds=3, cases=cases)
    block = trigger_rule(kept, "trigger_iceberg")
    assert "Each further file adds 2 ms to a reader's 20 ms. With 10 more files, reading takes twice as long." in block
    assert "Each snapshot in the table adds 0.5 ms to a batch's 11 ms." in block
    # 288 batches a day, and 576 files: 20 + 576 * 2, and 11 + 288 * 0.5.
    assert "| 5 minutes | 288 | 576 | 1,172 | 155 |" in block
    assert "Delta" not in block
    overlapping = of("Iceberg, a batch with 101 snapshots", 101, twopc=[11, 5, 12], pyiceberg=[1, 1, 1])
    noisy = msgspec.structs.replace(
        kept, cases=[overlapping if one.x == 101 and "batch" in one.name else one for one in cases]
    )
    block = trigger_rule(noisy, "trigger_iceberg")
    assert "More snapshots did not slow a batch by more than the rounds differ." in block
    assert "| 5 minutes | 288 | 576 | 1,172 | 11 |" in block
    assert "Not measured yet" in trigger_rule(kept, "trigger_delta")
    assert "Not measured yet" in trigger_rule(None, "trigger_iceberg")


def test_the_cases_have_the_names_that_the_rule_expects() -> None:
    names = [case_name(kind, what, 100) for kind in (SmallIcebergFiles, SmallDeltaFiles) for what in (COMMIT, READ)]
    assert names == [
        "Iceberg, a batch with 100 snapshots",
        "Iceberg, read from 100 files",
        "Delta, a batch with 100 versions",
        "Delta, read from 100 files",
    ]


@pytest.mark.parametrize("kind", [SmallIcebergFiles, SmallDeltaFiles])
def test_a_table_with_a_history_has_the_expected_rows_and_commits(kind: type[SmallFiles], tmp_path: Path) -> None:
    table = kind(tmp_path, 60, 3)
    assert table.read().column("id").to_pylist() == [*range(20)] * 3
    assert table.commits_made() == 3
    table.append(rows_of(5))
    assert (table.read().num_rows, table.commits_made()) == (65, 4)


class Message:
    """A record as librdkafka's consumer returns it."""

    def __init__(self, key: bytes | None, at_ms: int = 0) -> None:
        self._key, self._at_ms = key, at_ms

    def key(self) -> bytes | None:
        return self._key

    def timestamp(self) -> tuple[int, int]:
        return 2, self._at_ms


@pytest.mark.parametrize("key", [b"0", b"3", b"-1", None])
def test_a_duplicate_or_foreign_record_fails_the_run(key: bytes | None) -> None:
    seen = bytearray(3)
    seen[0] = 1
    counting._mark(seen, Message(b"1"), "t")  # type: ignore[arg-type]
    with pytest.raises(WrongCountError, match="unexpected or repeated key"):
        counting._mark(seen, Message(key), "t")  # type: ignore[arg-type]


def test_the_rate_is_taken_between_the_first_and_the_last_record() -> None:
    found = Count()
    for at_ms in (2_000, 1_000, 3_000, 1_500):
        counting._note(found, Message(b"", at_ms))  # type: ignore[arg-type]
    assert (found.records, found.first_ms, found.last_ms) == (4, 1_000, 3_000)
    assert (found.rate(), found.rate(without=3), found.rate(without=4)) == (2.0, 0.5, 2.0)


def test_the_sides_take_turns_once_per_round_and_the_warm_up_does_not_count() -> None:
    order: list[str] = []
    found, missing = in_turn(2, {name: lambda name=name: order.append(name) or len(order) for name in "abc"}, warm_up=1)  # type: ignore[misc,func-returns-value] # mypy cannot infer a default's type
    assert "".join(order) == "cbaabccba"
    assert (found, missing) == ({"a": [4, 9], "b": [5, 8], "c": [6, 7]}, [])


def test_a_side_that_cannot_be_set_up_leaves_no_figure_and_does_not_run_again() -> None:
    tries: list[int] = []

    def fails_at_the_second_try() -> int:
        tries.append(1)
        if len(tries) > 1:
            raise MissingError("gone")
        return 1

    found, missing = in_turn(3, {"a": fails_at_the_second_try, "b": lambda: 2})
    assert (found, len(tries)) == ({"b": [2, 2, 2]}, 2)
    assert [(one.name, one.reason) for one in missing] == [("a", "gone")]
