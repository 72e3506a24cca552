"""Overrides for ``exactly_once(override=…)``. Each override permits one action that is otherwise rejected.

An override applies to one particular query, batch or sink, so leaving it in the code does not weaken the checks. Every query
counts its batches from 0, so an override for a batch also names the query.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, replace
from typing import Any

from twopc.errors import ConfigurationError


@dataclass(frozen=True)
class EndQuery:
    """Take over a sink name from another query, and end that query permanently. Pass one EndQuery for each query to end.

    Attributes:
        query_id: the id of the query that ends.
    """

    query_id: str


@dataclass(frozen=True)
class AdoptQuery:
    """Add a sink to a query that has already run without it. The sink receives rows starting with the query's current batch.

    Attributes:
        query_id: the id of this query.
    """

    query_id: str


@dataclass(frozen=True)
class ResumeAt:
    """Continue after a gap if the missing batches contain no rows for the sinks, or were written by other means.

    If the log has lost the decision for a visible batch, this override also continues after that batch.

    Attributes:
        batch_id: the first batch after the gap, or after the visible batch.
        query_id: the id of this query. Without it, the override applies only to the first query that uses the sink name.
    """

    batch_id: int
    query_id: str | None = None


@dataclass(frozen=True)
class Abandon:
    """Give up the last decided batch, because it cannot be completed. The rows that are already visible stay visible.

    Attributes:
        batch_id: the id of the last decided batch.
        query_id: the id of the query that decided the batch. Without it, the override applies only to the first query that uses
            the sink name.
        sinks: the names of the sinks in which the batch is given up; empty for all sinks. The override that an error message
            suggests names only the affected sinks, so that no row in any other sink is given up.
    """

    batch_id: int
    query_id: str | None = None
    sinks: Sequence[str] = ()


@dataclass(frozen=True)
class AddSink:
    """Add a sink to a checkpoint that was bound without this sink. The sink's first batch is the query's next batch.

    Pass one AddSink for each sink to add.

    Attributes:
        name: the sink name.
    """

    name: str


Override = EndQuery | AdoptQuery | ResumeAt | Abandon | AddSink


@dataclass(frozen=True)
class Overrides:
    """All overrides that the user passes for a query.

    Attributes:
        adopt_query_id: see :class:`AdoptQuery`.
        end_query_ids: see :class:`EndQuery`.
        resume_at: see :class:`ResumeAt`.
        abandoned: see :class:`Abandon`.
        added_sinks: see :class:`AddSink`.
    """

    adopt_query_id: str | None = None
    end_query_ids: AbstractSet[str] = frozenset()
    resume_at: ResumeAt | None = None
    abandoned: AbstractSet[Abandon] = frozenset()
    added_sinks: AbstractSet[str] = frozenset()

    @classmethod
    def of(cls, given: Override | Sequence[Override]) -> Overrides:
        """Collect the user's overrides.

        Raises:
            ConfigurationError: a value is not an override, or AdoptQuery or ResumeAt is passed twice.
        """
        found: dict[str, str | ResumeAt] = {}
        several: dict[str, set[Any]] = {"end_query_ids": set(), "abandoned": set(), "added_sinks": set()}
        for one in given if isinstance(given, Sequence) and not isinstance(given, str) else (given,):
            field, value = _field_of(one)
            if field in several:
                several[field].add(value)
            elif field in found:
                raise ConfigurationError(
                    f"override={given!r}: pass each kind of override only once, except EndQuery, Abandon and AddSink"
                )
            else:
                found[field] = value
        return cls(**several, **found)  # type: ignore[arg-type]  # checked one by one

    def in_code(self, *added: Override) -> str:
        """Return these overrides and the added ones as a user writes them, beginning with ``override=``.

        An added AdoptQuery or ResumeAt replaces the user's own, because only one of each kind can be passed.
        """
        kinds = {type(one) for one in added}
        given: list[Override] = [EndQuery(one) for one in sorted(self.end_query_ids)]
        given += [] if self.adopt_query_id is None or AdoptQuery in kinds else [AdoptQuery(self.adopt_query_id)]
        given += [AddSink(one) for one in sorted(self.added_sinks)]
        given += [] if self.resume_at is None or ResumeAt in kinds else [self.resume_at]
        given += sorted(self.abandoned, key=str)
        texts = [_in_code(one) for one in dict.fromkeys([*given, *added])]
        return f"override={texts[0]}" if len(texts) == 1 else f"override=[{', '.join(texts)}]"

    def resumes_at(self, query_id: str, batch_id: int, *, needs_id: bool) -> bool:
        """Whether the user lets this query continue at this batch, after a gap. ``needs_id``: see :meth:`abandons`."""
        return _means(self.resume_at, query_id, batch_id, needs_id=needs_id)

    def abandons(self, query_id: str, batch_id: int, sinks: Collection[str], *, needs_id: bool) -> bool:
        """Whether the user abandons this query's batch in all of these sinks.

        ``needs_id`` says whether an override without a query id may have been meant for another query.
        """
        meant = [one for one in self.abandoned if _means(one, query_id, batch_id, needs_id=needs_id)]
        named = {sink for one in meant for sink in one.sinks}
        return bool(meant) and (any(not one.sinks for one in meant) or named.issuperset(sinks))


def _in_code(one: Override) -> str:
    values = [repr(value) for field, value in vars(one).items() if value is not None and field != "sinks"]
    if isinstance(one, Abandon) and one.sinks:
        values.append(f"sinks={list(one.sinks)!r}")
    return f"{type(one).__name__}({', '.join(values)})"


def _means(one: ResumeAt | Abandon | None, query_id: str, batch_id: int, *, needs_id: bool) -> bool:
    if one is None or one.batch_id != batch_id:
        return False
    return not needs_id if one.query_id is None else one.query_id == query_id


def _field_of(one: object) -> tuple[str, Any]:
    match one:
        case EndQuery(str(query_id)):
            return "end_query_ids", query_id
        case AdoptQuery(str(query_id)):
            return "adopt_query_id", query_id
        case AddSink(str(name)):
            return "added_sinks", name
        case ResumeAt(int(batch_id), str() | None) if not isinstance(batch_id, bool):
            return "resume_at", one
        case Abandon(int(batch_id), str() | None, list() | tuple() as sinks) if not isinstance(batch_id, bool):
            if all(isinstance(sink, str) for sink in sinks):
                return "abandoned", replace(one, sinks=tuple(sorted(sinks)))
    raise ConfigurationError(
        f"override={one!r} is not an override. Pass EndQuery(id), AdoptQuery(id), ResumeAt(batch, id), Abandon(batch, id), "
        "Abandon(batch, id, sinks=[name, ...]) or AddSink(name), with the values from the error message"
    )
