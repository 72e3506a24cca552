"""Under Spark Connect, queries on the same DataFrame share its columns: which of them makes a call."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from pyspark.errors import PySparkException

from twopc.errors import ConfigurationError
from twopc.files import LocalFiles
from twopc.integration.connect import caller
from twopc.integration.connect import query as query_module
from twopc.integration.connect.caller import queries_with
from twopc.integration.connect.plans import Plan, parsed
from twopc.integration.connect.query import calling_query
from twopc.integration.connect.worker import CalledBatch

_BATCH = "== Physical Plan ==\nScan ExistingRDD[key#7, value#8]\n"


@dataclass
class Query:
    """A query of the session, as Spark Connect shows it."""

    id: str
    reads: str = "key#7, value#8"
    is_cut: bool = False
    is_in_trigger: bool = True
    batches: int = 0  #: the triggers that have ended
    is_registered: bool = True
    ends_at_look: int = 0  #: the number of the look during which the trigger ends; 0: it does not end
    looks: int = field(default=0, init=False)

    @property
    def runId(self) -> str:  # noqa: N802 - Spark's name
        return f"run-of-{self.id}"

    @property
    def status(self) -> dict[str, bool]:
        if not self.is_registered:
            raise PySparkException("no such query")
        self.looks += 1
        self.batches += self.looks == self.ends_at_look
        return {"isTriggerActive": self.is_in_trigger}

    @property
    def lastProgress(self) -> Any:  # noqa: N802 - Spark's name
        return SimpleNamespace(batchId=self.batches - 1, timestamp="") if self.batches else None


def plan_of(query: Query) -> Plan:
    if not query.is_registered:
        raise PySparkException("no such query")
    return parsed(f"== Analyzed Logical Plan ==\nProject [{query.reads}]\n{'... 9 more characters' * query.is_cut}")


@pytest.fixture
def files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> LocalFiles:
    """The checkpoint of the query "mine". A batch with the columns key#7 and value#8 is being processed."""
    (tmp_path / "metadata").write_text(json.dumps({"id": "mine"}))
    monkeypatch.setattr(query_module, "called_batch", lambda: CalledBatch(None, 0))  # type: ignore[arg-type]
    monkeypatch.setattr(query_module, "plan_of_frame", lambda _: parsed(_BATCH))
    monkeypatch.setattr(caller, "plan_of_query", plan_of)
    monkeypatch.setattr(caller, "_POLL_S", 0)
    monkeypatch.setattr(caller, "_LIMIT_S", 5)
    return LocalFiles(str(tmp_path))


def session_of(*queries: Query) -> Any:
    return SimpleNamespace(streams=SimpleNamespace(active=queries))


def test_the_only_query_is_the_caller(files: LocalFiles) -> None:
    assert calling_query(session_of(Query("mine")), files).run_id == "run-of-mine"


def test_an_error_about_a_query_that_does_not_run_names_each_possible_cause(files: LocalFiles) -> None:
    with pytest.raises(
        ConfigurationError,
        match=r"query mine, which is not running.*\(1\).*checkpoint.*\(2\).*stopped.*\(3\).*another session",
    ):
        calling_query(session_of(Query("other")), files)
    (Path(files.location) / "metadata").unlink()
    with pytest.raises(ConfigurationError, match=r"Under Spark Connect, write file:/… in both places.*fs\.defaultFS"):
        calling_query(session_of(Query("mine")), files)


def test_a_run_already_active_before_the_process_started_is_not_the_caller(files: LocalFiles) -> None:
    """Another query has the same object and the same columns, and both are in a trigger."""
    for queries in ([Query("mine"), Query("other")], [Query("mine")]):
        with pytest.raises(ConfigurationError, match="belongs to query mine, but this call came from another query"):
            calling_query(session_of(*queries), files, {"run-of-mine"})


@pytest.mark.parametrize(
    ("mine", "other"),
    [
        (Query("mine", is_in_trigger=False), Query("other")),
        (Query("mine", reads="key#1, value#2"), Query("other")),
        (Query("mine", ends_at_look=2), Query("other")),
    ],
    ids=["it is idle", "it reads other columns", "it ends a trigger during the call"],
)
def test_a_query_that_does_not_wait_for_the_call_is_not_the_caller(
    mine: Query, other: Query, files: LocalFiles
) -> None:
    with pytest.raises(ConfigurationError, match="this call came from another query in the same session"):
        calling_query(session_of(mine, other), files)


@pytest.mark.parametrize(
    "other",
    [
        Query("other", is_in_trigger=False),
        Query("other", reads="key#1, value#2"),
        Query("other", ends_at_look=3),
        Query("other", batches=7, ends_at_look=3),
    ],
    ids=["it is idle", "it reads other columns", "it ends its first trigger", "it ends a later trigger"],
)
def test_the_only_remaining_query_is_the_caller(other: Query, files: LocalFiles) -> None:
    assert calling_query(session_of(Query("mine"), other), files).run_id == "run-of-mine"


def test_a_query_that_started_before_the_process_does_not_hide_the_caller(files: LocalFiles) -> None:
    session = session_of(Query("mine"), Query("other"))
    assert calling_query(session, files, {"run-of-other"}).run_id == "run-of-mine"


@pytest.mark.parametrize("other", [Query("other"), Query("other", is_registered=False)])
def test_if_two_queries_may_have_made_the_call_it_is_refused(
    other: Query, files: LocalFiles, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(caller, "_LIMIT_S", 0.01)
    with pytest.raises(
        ConfigurationError, match=r"may also have come from.*\(query other\).*Give each query its own DataFrame"
    ):
        calling_query(session_of(Query("mine"), other), files)


def test_a_plan_that_spark_has_cut_short_does_not_exclude_the_caller(files: LocalFiles) -> None:
    session = session_of(Query("mine", reads="", is_cut=True), Query("other", is_in_trigger=False))
    assert calling_query(session, files).run_id == "run-of-mine"


@pytest.mark.usefixtures("files")
def test_other_queries_that_may_have_the_batchs_columns_are_found_even_if_they_are_idle(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(caller, "_STARTING_S", 0.0)
    others = [
        Query("idle", is_in_trigger=False),
        Query("unlike", reads="key#7, value#9"),
        Query("cut", reads="", is_cut=True),
        Query("starting", is_registered=False),
    ]
    found = queries_with({"key#7", "value#8"}, session_of(Query("mine"), *others), "run-of-mine")
    assert found == ["idle", "cut", "starting"]


@pytest.mark.usefixtures("files")
def test_a_query_that_is_just_starting_is_asked_again_before_the_batch_is_refused(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    starting = Query("starting", reads="key#1, value#2", is_registered=False)

    def register(_: float) -> None:
        starting.is_registered = True

    monkeypatch.setattr("tenacity.nap.time", SimpleNamespace(sleep=register))
    assert queries_with({"key#7", "value#8"}, session_of(Query("mine"), starting), "run-of-mine") == []
