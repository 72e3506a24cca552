"""Find out where a DataFrame's rows come from, and keep the server from resolving its names twice.

Under Spark Connect, a DataFrame is a message, and the server resolves the message's names again for each request. All queries
of a session share their temporary views, so between two requests, another query may replace a view.
"""

from __future__ import annotations

import contextlib
import re
import uuid
from collections import Counter
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

from pyspark.errors import PySparkException

from twopc.errors import ConfigurationError
from twopc.integration.connect.plans import plan_of_frame

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    from twopc.integration.connect.plans import Plan
    from twopc.integration.spark.several import SinkFrame

#: The Spark Connect messages that contain the name of a table or a view.
_NAMES: Final = frozenset({"SQL", "NamedTable"})
#: The Spark Connect messages that contain a pickled function.
_FUNCTIONS: Final = frozenset({"PythonUDF", "PythonUDTF"})
#: The message of a node in a plan.
_RELATION: Final = "Relation"
#: The leaves of a plan whose rows are fixed: RDDs on the server (a batch or a checkpoint), and rows in the plan itself.
_FIXED: Final = frozenset(
    {"cached_remote_relation", "local_relation", "cached_local_relation", "chunked_cached_local_relation", "range"}
)
#: The beginning of a subquery in an SQL expression.
_SUBQUERY: Final = re.compile(r"\(\s*(?:select\b|with\s|from\s|table\s)", re.IGNORECASE)


def has_subquery(sql: str) -> bool:
    """Whether an SQL expression may contain a query, which names a table or a view."""
    return _SUBQUERY.search(sql) is not None


def is_by_name(frame: Any) -> bool:
    """Whether a DataFrame names a table or a view."""
    return any(
        part.DESCRIPTOR.name in _NAMES or (part.DESCRIPTOR.name == "ExpressionString" and has_subquery(part.expression))
        for part, _ in messages(relation_of(frame))
    )


def other_data(frame: Any) -> str | None:
    """See :class:`~twopc.integration.spark.mode.Mode`. The server keeps the rows of a batch and of a checkpoint."""
    if is_by_name(frame):
        return "the name of a table or a view"
    relations = (part for part, _ in messages(relation_of(frame)) if part.DESCRIPTOR.name == _RELATION)
    kinds = ((one, str(one.WhichOneof("rel_type"))) for one in relations)
    return next((kind for one, kind in kinds if kind not in _FIXED and _is_leaf(one)), None)


def functions_in(frame: Any) -> list[bytes]:
    """Return the pickled Python functions of a DataFrame, but not those of the batch, or of a table or a view that it names."""
    return [part.command for part, _ in messages(relation_of(frame)) if part.DESCRIPTOR.name in _FUNCTIONS]


def has_barrier(frame: Any) -> bool:
    """Whether a DataFrame runs a Python function in barrier mode."""
    return any(part.DESCRIPTOR.name == "MapPartitions" and part.is_barrier for part, _ in messages(relation_of(frame)))


def _is_leaf(relation: Any) -> bool:
    return all(part is relation or part.DESCRIPTOR.name != _RELATION for part, _ in messages(relation))


def references(frame: Any, analyzed: str) -> Counter[str]:
    """Count how often a DataFrame refers to each RDD on the server (a batch or a checkpoint), by the RDD's id.

    Args:
        frame: the DataFrame.
        analyzed: the DataFrame's analyzed plan.
    """
    found: Counter[str] = Counter()
    for part, times in messages(relation_of(frame), analyzed):
        if part.DESCRIPTOR.name == "CachedRemoteRelation":
            found[part.relation_id] += times
    return found


def plan_of_rows(frame: Any, given: Any, batch: Any) -> Plan:
    """Return a DataFrame's plan, which includes how many of its RDDs are the batch itself.

    Args:
        frame: the DataFrame.
        given: the user's DataFrame, from which ``frame`` was made.
        batch: the batch.
    """
    plan = plan_of_frame(frame)
    own = relation_of(batch).cached_remote_relation.relation_id
    return replace(plan, known=references(given, plan.analyzed)[own])


@contextlib.contextmanager
def resolved(frames: Sequence[SinkFrame]) -> Iterator[list[SinkFrame]]:
    """Let the server resolve the names in each DataFrame only once. DataFrames that contain no names stay unchanged."""
    with contextlib.ExitStack() as views:
        yield [one._replace(frame=_pinned(one.frame, views)) if is_by_name(one.frame) else one for one in frames]


def require_own_rows(
    batch_id: int,
    query: Plan,
    named: Mapping[str, tuple[Plan, Counter[str]]],
    batch: set[str],
    others: Callable[[], Sequence[str]],
) -> None:
    """Check the DataFrames that read an RDD by a name. Each such RDD must be this batch.

    Args:
        batch_id: the batch.
        query: the query's plan.
        named: maps a DataFrame's name to its plan and its references, if the DataFrame names a table or a view.
        batch: the batch's columns. The columns' numbers are unique in the server's JVM.
        others: returns the ids of the other queries that may process batches with these columns.

    Raises:
        ConfigurationError: an RDD may be something other than this batch.
    """
    for name, (plan, by_id) in named.items():
        if not plan.is_cut and len(plan.rdds) <= by_id.total():
            continue  # the names refer only to tables
        # Without columns, the batch looks the same as any other rows without columns.
        if plan.is_cut or not batch or any(columns != batch for columns in plan.rdds):
            raise _refused(
                batch_id, name, "some of the rows that the view or the SQL yields may not belong to this batch"
            )
        if query.may_pass_on(batch):
            reason = "the query itself reads a view, so its batch looks the same as a batch of another query that reads this view"
            raise _refused(batch_id, name, reason)
        if found := others():
            reason = f"{_listed(found)} in the same session may process batches with the same columns"
            raise _refused(
                batch_id, name, f"{reason}, so the toolkit cannot tell which query's batch the view contains"
            )


def require_own_views(batch_id: int, plans: Mapping[str, Plan], known: Mapping[str, str]) -> None:
    """Check the views that were made after the query's start. Another query may have replaced them.

    Such a view may contain rows that a function has collected. Nothing shows to which batch these rows belong.

    Args:
        batch_id: the batch.
        plans: maps a DataFrame's name to its plan, if the DataFrame names a table or a view.
        known: the session's temporary views just before the query started; see :func:`views_of`.

    Raises:
        ConfigurationError: the rows of a view may belong to another batch, or two DataFrames read one view.
    """
    views: set[str] = set()
    for name, plan in plans.items():
        made = plan.besides(known)
        if found := made.views_of_rows:
            reason = (
                f"the view {found[0]} contains rows that are neither from a table nor from the batch itself. The view was made "
                "or replaced after the query had started, and nothing shows whether its rows are of this batch"
            )
            raise _refused(batch_id, name, reason)
        if shared := sorted(views & made.temporary_views.keys()):
            raise _refused(batch_id, name, f"another DataFrame in the same call also reads the view {shared[0]}")
        views |= made.temporary_views.keys()


def views_of(session: Any) -> dict[str, str]:
    """Return an identity for each temporary view of a session; see :attr:`Plan.identities`. Evaluates nothing."""
    found: dict[str, str] = {}
    with contextlib.suppress(PySparkException):  # without the list, a view counts as made later
        # Spark lists the temporary views with those of any database. This database is not in a catalog, so the list is short.
        for one in session.sql("SHOW VIEWS IN global_temp").collect():
            with contextlib.suppress(PySparkException):  # nobody can read a view whose table is gone
                parts = filter(None, (one.namespace, one.viewName))
                quoted = ".".join(f"`{part.replace('`', '``')}`" for part in parts)
                found |= plan_of_frame(session.table(quoted)).identities
    return found


def require_no_subquery(batch_id: int, select: Mapping[str, Iterable[str]]) -> None:
    """Check that the sinks' SQL expressions name no table or view.

    Raises:
        ConfigurationError: an expression contains a query.
    """
    for sink, expressions in select.items():
        if found := next(filter(has_subquery, expressions), None):
            raise ConfigurationError(
                f"batch {batch_id}: select[{sink!r}] contains a subquery: {found}. Under Spark Connect, another query "
                "could replace a view between two evaluations of the expression, so the sink could receive wrong "
                "values. Nothing was written. Instead, add the column to the DataFrame in the foreachBatch function"
            )


def _refused(batch_id: int, name: str, reason: str) -> ConfigurationError:
    of = f" for sink {name!r}" if name else ""
    return ConfigurationError(
        f"batch {batch_id}: the DataFrame{of} uses a temporary view or SQL, and {reason}. Under Spark Connect, a "
        "view's name is resolved only when the rows are needed, and all queries in a session share their views. So "
        "rows from another query or another DataFrame could be written instead of this batch's rows. Nothing was "
        "written. Use DataFrame operations, or pass the DataFrame to the SQL: spark.sql('… FROM {rows}', rows=batch)"
    )


def _listed(queries: Sequence[str]) -> str:
    return f"quer{'y' if len(queries) == 1 else 'ies'} {', '.join(queries)}"


def relation_of(frame: Any) -> Any:
    """Return the message of a DataFrame. PySpark makes a new message each time."""
    return frame._plan.plan(frame.sparkSession.client)  # noqa: SLF001 - no public API returns the plan's message


def _pinned(frame: Any, views: contextlib.ExitStack) -> Any:
    # A view of a DataFrame keeps the analyzed plan, so the names in this plan are not resolved again.
    name, session = f"__twopc_{uuid.uuid4().hex}", frame.sparkSession
    frame.createTempView(name)
    views.callback(_drop, session, name)
    return session.table(name)


def _drop(session: Any, name: str) -> None:
    with contextlib.suppress(Exception):  # the session may have ended, and its views with it
        session.catalog.dropTempView(name)


def messages(relation: Any, analyzed: str = "") -> Iterator[tuple[Any, int]]:
    """Yield a message and all messages nested in it. With each message, yield how often the analyzed plan contains it.

    This function does not recurse, because a plan may be deeper than Python's stack.
    """
    waiting = [(relation, 1)]
    while waiting:
        message, times = waiting.pop()
        yield message, times
        waiting += [(part, times * _uses(message, part, analyzed)) for part in _parts(message)]


def _uses(message: Any, part: Any, analyzed: str) -> int:
    """How many times a plan uses a part of a message. An SQL query may use a DataFrame argument once, several times, or never."""
    if message.DESCRIPTOR.name == "WithRelations" and part.WhichOneof("rel_type") == "subquery_alias":
        return analyzed.count(f"View (`{part.subquery_alias.alias}`,")
    return 1


def _parts(message: Any) -> Iterator[Any]:
    for _, value in message.ListFields():
        if _is_message(value):
            yield value
        elif not isinstance(value, (str, bytes, int, float)):
            several = value.values() if hasattr(value, "values") else value
            yield from filter(_is_message, several)


def _is_message(value: Any) -> bool:
    return hasattr(value, "ListFields")
