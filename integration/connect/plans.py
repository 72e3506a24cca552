"""Read Spark's plans as text, because Spark Connect provides no other form.

If something is unknown, assume the worst case: a node with an unknown name may shuffle, and a plan that Spark cut short may
contain any node.
"""

from __future__ import annotations

import itertools
import re
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final

from twopc.integration.spark.kept_data import keeps_data
from twopc.integration.spark.plan_text import NODE, OMITTED, is_cut_short

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from collections.abc import Set as AbstractSet

    from pyspark.sql import DataFrame

#: Nodes that do not shuffle rows themselves. If such a node needs shuffled input, Spark puts an ``Exchange`` below it.
_STAYING: Final = frozenset(
    {
        "AdaptiveSparkPlan",
        "AggregateInPandas",
        "AppendColumns",
        "ArrowAggregatePython",
        "ArrowEvalPython",
        "ArrowEvalPythonUDTF",
        "ArrowWindowPython",
        "BatchEvalPython",
        "BatchEvalPythonUDTF",
        "BatchScan",
        "BroadcastExchange",
        "BroadcastHashJoin",
        "BroadcastNestedLoopJoin",
        "BroadcastQueryStage",
        "Coalesce",
        "CollectMetrics",
        "ColumnarToRow",
        "DeserializeToObject",
        "EventTimeWatermark",
        "Expand",
        "FileScan",
        "Filter",
        "FlatMapCoGroupsInArrow",
        "FlatMapCoGroupsInPandas",
        "FlatMapGroupsInArrow",
        "FlatMapGroupsInPandas",
        "Generate",
        "GlobalLimit",
        "HashAggregate",
        "InMemoryRelation",
        "InMemoryTableScan",
        "InputAdapter",
        "LocalLimit",
        "LocalTableScan",
        "MapElements",
        "MapGroups",
        "MapInArrow",
        "MapInPandas",
        "MapPartitions",
        "MicroBatchScan",
        "ObjectHashAggregate",
        "Project",
        "PythonMapInArrow",
        "Range",
        "ResultQueryStage",
        "RowToColumnar",
        "Sample",
        "Scan",
        "SerializeFromObject",
        "ShuffledHashJoin",
        "Sort",
        "SortAggregate",
        "SortMergeJoin",
        "Union",
        "WholeStageCodegen",
        "Window",
        "WindowGroupLimit",
        "WindowInPandas",
    }
)
_SHUFFLES: Final = frozenset({"Exchange", "ReusedExchange"})
#: Nodes around an ``Exchange`` that has run.
_SHUFFLED: Final = frozenset({"AQEShuffleRead", "ShuffleQueryStage"})
#: The beginning of a node's line: the branch that connects the node with its parent. The root has no branch. An RDD may
#: also be the root of an analyzed plan, below the schema.
_BEGINNING: Final = re.compile(r"[\s:|]*[+:]- |~?\w+RDD \[")
_SECTION: Final = re.compile(r"^(?:\+- )?== (?P<title>[\w ]+) ==$")
#: The header of one form of an adaptive plan inside another plan. The adaptive plan may be a cached one, for example.
_INNER_SECTION: Final = re.compile(r"^[\s:|+-]*== [\w ]+ ==$")
#: An RDD in an analyzed plan. The end of the line says whether the RDD belongs to a stream.
_RDD: Final = re.compile(r"^[\s:|+~-]*\w+RDD \[(?P<columns>.*)\](?P<is_streaming>, true)?")
#: Rows that an analyzed plan itself contains.
_ROWS: Final = re.compile(r"\bLocalRelation ")
#: Rows or values that an analyzed plan itself contains.
_GIVEN: Final = re.compile(r"\b(?:LocalRelation|OneRowRelation)\b")
#: The place of a node in the tree of an analyzed plan.
_BRANCH: Final = re.compile(r"[\s:|+~-]*")
#: A view in an analyzed plan.
_VIEW: Final = re.compile(r"^[\s:|+~-]*View \((?P<name>`.*`), \[(?P<columns>.*)\]\)")
#: A view that no other query can replace: the toolkit's own, PySpark's own (for a DataFrame that is passed to SQL), or a view in
#: a catalog, which is like a table.
_SAFE_VIEW: Final = re.compile(r"`__twopc_|`_pyspark_connect_temp_view_|(?!`global_temp`)`.*`\.`")
#: The leaves of an analyzed plan that do not show their rows. Only their columns' numbers distinguish them.
_UNSHOWN: Final = re.compile(r"\bLocalRelation |RDD \[")
_NUMBER: Final = re.compile(r"#\d+")
#: A column with its number, which is unique in the server's JVM.
_COLUMN: Final = re.compile(r"[^\s\[\],()]*#\d+")
#: A stateful operator that has no keys. An aggregate with keys lists them before the words "state info".
_WITHOUT_KEYS: Final = re.compile(r"StreamingGlobalLimit |StateStoreSave state info ")
#: A stateful operator's id, which is its directory in the checkpoint.
_OPERATOR: Final = re.compile(r", opId = (?P<id>\d+), ver = ")
_STATE: Final = re.compile(r"State(?!ment)|TransformWith|FlatMapGroups|^Streaming|^SessionWindow")


@dataclass(frozen=True)
class Plan:
    """A Spark plan.

    Attributes:
        analyzed: the analyzed plan, as text.
        forms: the forms of the physical plan. An adaptive plan that has run has two forms: final and initial. For each
            node, a form contains the node's name and the rest of the node's line.
        is_cut: whether Spark has omitted a part of the plan, or the whole plan.
        text: the output of ``explain``.
        known: how many of the plan's RDDs are the batch itself.
    """

    analyzed: str
    forms: tuple[tuple[tuple[str, str], ...], ...]
    is_cut: bool
    text: str
    known: int = 0

    @property
    def shuffles(self) -> int | None:
        """The number of shuffles in the plan; None if the number is unknown."""
        names = [[name for name, _ in form] for form in self.forms]
        if self.is_cut or not any(names) or self.unknown:
            return None
        return max(sum(name in _SHUFFLES for name in form) for form in names)

    @property
    def unknown(self) -> list[str]:
        """The names of the plan's nodes that may shuffle."""
        known = _STAYING | _SHUFFLES | _SHUFFLED
        return sorted({name for name, _ in self._nodes if name not in known})

    @property
    def reads_cache(self) -> bool:
        """Whether the plan may read rows that Spark has cached."""
        return self.is_cut or any(name.startswith("InMemory") for name, _ in self._nodes)

    @property
    def keeps_state(self) -> bool:
        """Whether one of the plan's operators may be stateful."""
        return self.is_cut or any(_STATE.search(name) for name, _ in self._nodes)

    @property
    def operators_without_keys(self) -> frozenset[int]:
        """The ids of the stateful operators that need all rows in one place. Such an operator has one partition."""
        found = (_OPERATOR.search(rest) for name, rest in self._nodes if _WITHOUT_KEYS.match(name + rest))
        return frozenset(int(one["id"]) for one in found if one)

    @property
    def keeps_data(self) -> bool:
        """Whether the plan may use a broadcast table or the result of a subquery."""
        return self.is_cut or keeps_data(name + rest for name, rest in self._nodes)

    @property
    def batches(self) -> list[set[str]]:
        """The columns of each RDD that the plan reads. The batch itself is one of these RDDs."""
        return [columns_of(rest) for name, rest in self._nodes if name == "Scan" and "ExistingRDD" in rest]

    @property
    def rdds(self) -> list[set[str]]:
        """The columns of each RDD that the plan reads, except the RDDs of streams. Columns do not identify an RDD.

        For example, ``localCheckpoint()`` keeps the columns of the DataFrame.
        """
        found = filter(None, map(_RDD.match, self.analyzed.split("\n")))
        return [columns_of(one["columns"]) for one in found if not one["is_streaming"]]

    @property
    def views(self) -> dict[str, str]:
        """The columns of each view that the plan reads, as text, by the view's name."""
        found = filter(None, map(_VIEW.match, self.analyzed.split("\n")))
        return {one["name"]: one["columns"] for one in found}

    @property
    def temporary_views(self) -> dict[str, list[str]]:
        """The lines of each temporary view that the plan reads, by the view's name. Another query may replace such a view."""
        lines = self.analyzed.split("\n")
        return {name: _subtree(lines, at) for at in range(len(lines)) if (name := _temporary_view(lines[at]))}

    @property
    def views_of_rows(self) -> list[str]:
        """The names of the temporary views that contain rows or values, and do not read an RDD, such as a batch."""
        views = self.temporary_views.items()
        return [name for name, lines in views if any(map(_GIVEN.search, lines)) and not any(map(_RDD.match, lines))]

    @property
    def identities(self) -> dict[str, str]:
        """A text for each temporary view that the plan reads. Two views with the same name and text have the same rows.

        A view whose columns Spark does not show has no text, because it may have any rows.
        """
        identities = ((name, _identity(lines)) for name, lines in self.temporary_views.items())
        return {name: text for name, text in identities if text}

    def besides(self, known: Mapping[str, str]) -> Plan:
        """Return the plan without some temporary views.

        Args:
            known: see :attr:`identities`.
        """
        lines, kept, at = self.analyzed.split("\n"), [], 0
        while at < len(lines):
            name = _temporary_view(lines[at])
            if name in known and known[name] == _identity(view := _subtree(lines, at)):
                at += len(view)
            else:
                kept.append(lines[at])
                at += 1
        return replace(self, analyzed="\n".join(kept))

    def may_pass_on(self, columns: set[str]) -> bool:
        """Whether the plan may read all of these columns from one view, which another plan may read as well."""
        texts = self.views.values()
        return self.is_cut or any(columns <= columns_of(text) or OMITTED in text for text in texts)

    def may_have(self, columns: AbstractSet[str]) -> bool:
        """Whether the plan may have all of these columns."""
        return self.is_cut or columns <= columns_of(self.analyzed)

    @property
    def hides_rows(self) -> bool:
        """Whether the plan reads an RDD that is not the batch. The plan does not show how the RDD's rows were computed."""
        return self.is_cut or len(self.rdds) > self.known

    @property
    def may_replace_batch(self) -> bool:
        """Whether the plan contains rows and does not read the batch. The function may have collected the batch before."""
        return not self.known and bool(_ROWS.search(self.analyzed))

    @property
    def _nodes(self) -> list[tuple[str, str]]:
        return [node for form in self.forms for node in form]


def columns_of(text: str) -> set[str]:
    """Find the columns in a text. Each column's name includes the column's number."""
    return set(_COLUMN.findall(text))


def _temporary_view(line: str) -> str:
    found = _VIEW.match(line)
    return "" if found is None or _SAFE_VIEW.match(found["name"]) else found["name"]


def _subtree(lines: Sequence[str], at: int) -> list[str]:
    """Return the line of a node and the lines of all nodes below it, without the node's place in the tree."""
    depth = _depth(lines[at])
    below = itertools.takewhile(lambda line: _depth(line) > depth, lines[at + 1 :])
    return [line[depth:].rstrip() for line in (lines[at], *below)]


def _depth(line: str) -> int:
    found = _BRANCH.match(line)
    return found.end() if found else 0


def _identity(lines: Sequence[str]) -> str:
    text, unshown = "\n".join(lines), list(filter(_UNSHOWN.search, lines))
    if not all(map(_NUMBER.search, unshown)):
        return ""
    # Spark may number the columns of tables and values anew each time that it resolves the view's name.
    return text if unshown else _NUMBER.sub("#", text)


def parsed(text: str) -> Plan:
    """Parse the output of ``explain(extended=True)``."""
    analyzed: list[str] = []
    forms: list[list[tuple[str, str]]] = []
    title = ""
    for line in _lines(text):
        # Count every form of an inner plan. An inner plan's shuffle is therefore counted twice, but no shuffle of the
        # outer plan is missed.
        if _INNER_SECTION.match(line) and not _SECTION.match(line):
            continue
        if found := _SECTION.match(line):
            title = found["title"]
            if title.endswith("Physical Plan") or (title.endswith(" Plan") and forms):
                forms.append([])
        elif forms and line.strip():
            node = NODE.match(line)
            forms[-1].append((node["name"], node["rest"]) if node else ("", line))
        elif title == "Analyzed Logical Plan":
            analyzed.append(line)
    is_shown = bool(analyzed or any(forms))  # a message in place of a plan shows no node
    return Plan("\n".join(analyzed), tuple(map(tuple, forms)), is_cut_short(text) or not is_shown, text)


def _lines(text: str) -> Iterator[str]:
    """Yield each header, node and other line of a plan. An expression or a column's name may contain line breaks.

    A line that may be a node is never appended to another line.
    """
    waiting: list[str] = []
    is_below_header = True
    for line in text.split("\n"):
        is_header = bool(_SECTION.match(line) or _INNER_SECTION.match(line))
        if is_header or is_below_header or _BEGINNING.match(line):
            if waiting:
                yield " ".join(waiting)
            waiting = []
        waiting.append(line)
        is_below_header = is_header
    yield " ".join(waiting)


def plan_of_frame(frame: DataFrame) -> Plan:
    """Return a DataFrame's plan. Evaluates nothing."""
    connect: Any = frame
    return parsed(connect._explain_string(extended=True))  # noqa: SLF001 - the public method only prints the plan


def plan_of_query(query: Any) -> Plan:
    """Return the plan of the batch that a query is processing."""
    from pyspark.sql.connect import proto  # noqa: PLC0415 - cannot be imported without grpc

    command: Any = proto.StreamingQueryCommand()
    command.explain.extended = True
    return parsed(query._execute_streaming_query_cmd(command).explain.result)  # noqa: SLF001 - the public method only prints the plan
