"""Find the log that contains a query's decisions. The ledger of the query's dead-letter sink may contain them.

All sinks of a query share one log. Each driver writes its name to every sink's ledger when it acquires the sink.
"""

from __future__ import annotations

from contextlib import closing
from dataclasses import replace
from typing import TYPE_CHECKING, NamedTuple

from twopc.binding import Binding
from twopc.decision_log import ABSENT
from twopc.errors import ConfigurationError
from twopc.integration.verify.deciding import Where, stores
from twopc.log_view import LogView, fold
from twopc.records import Acquired
from twopc.refusals import damaged
from twopc.sinks.kafka import KafkaSink

if TYPE_CHECKING:
    from collections.abc import Iterable

    from twopc.files import Files


class UnreadDecisionsError(ConfigurationError):
    """The log that contains the query's decisions belongs to none of the known sinks."""


class Sinks(NamedTuple):
    """A query's sinks, as a command finds them."""

    here: list[KafkaSink]  #: the sinks on the cluster to which the command connects
    elsewhere: list[str]  #: descriptions of the other sinks, which the command cannot reach


def decided_by(query_id: str, sink: KafkaSink, sinks: Iterable[object]) -> int | None:
    """Return the last batch that the query has decided. Return None if the query has not decided any batch.

    Args:
        query_id: the query.
        sink: one of the query's sinks. Its ledger names the log that contains the decisions.
        sinks: all of the query's sinks.

    Raises:
        UnreadDecisionsError: that log belongs to none of the sinks.
        TwoPhaseCommitError: a log is damaged, or cannot be read.
    """
    view = _view_of(sink)
    acquired = _acquired(view, query_id)
    if acquired is None or stores(sink, _place(acquired)):
        return view.highest_batch_of(query_id)
    for other in sinks:
        if isinstance(other, KafkaSink) and stores(other, _place(acquired)):
            return _view_of(other).highest_batch_of(query_id)
    raise UnreadDecisionsError(
        f"query {query_id} stores its decisions in {acquired.deciding_log}, the ledger of a sink that is no longer "
        "passed to exactly_once(). Nothing was written. Pass that sink (it may be the dead-letter sink) again under "
        "the same name, and restart"
    )


def sinks_of(query_id: str, sink: KafkaSink, own: Files) -> Sinks:
    """Return ``sink``, and any other sink that takes part in the query's decisions.

    Args:
        query_id: the query.
        sink: one of the query's sinks; its settings are used to connect to the other sinks on its cluster.
        own: the toolkit's directory in the checkpoint.

    Raises:
        ConfigurationError: ``sink`` is not one of the query's sinks.
        TwoPhaseCommitError: a log is damaged, or cannot be read.
    """
    bound = Binding(own).sinks
    if bound and sink.name not in bound:
        raise ConfigurationError(
            f"{own.location}: the query writes to {', '.join(sorted(bound))}, but not to sink {sink.name!r}. Nothing "
            "was done. Check --sink"
        )
    here, elsewhere = [sink], list[str]()
    for name, facts in bound.items():
        if "ledger" not in facts or facts["cluster"] != bound[sink.name]["cluster"]:
            elsewhere.append(f"sink {name!r}")
        elif name != sink.name:
            here.append(replace(sink, name=name, ledger_topic=facts["ledger"]))
    # A query binds its sinks just before its first decision. Until then, only the sink's ledger names the deciding log.
    acquired = _acquired(_view_of(sink), query_id)
    if acquired is not None and not any(stores(one, _place(acquired)) for one in here):
        owner = _owner_of(acquired, sink)
        if owner is not None:
            here.append(owner)
        elif not elsewhere:
            elsewhere.append(f"the sink whose ledger is {acquired.deciding_log}")
    return Sinks(here, elsewhere)


def _view_of(sink: KafkaSink) -> LogView:
    with closing(sink.create_decision_log()) as log:
        view = fold(log.inspect())
    if view.damage is not None:
        raise damaged(view, sink.ledger)
    return view


def _acquired(view: LogView, query_id: str) -> Acquired | None:
    """Return the record of the last driver that has acquired the log. Return None if it was a driver of another query."""
    return view.acquired if view.acquired is not None and view.acquired.query_id == query_id else None


def _place(acquired: Acquired) -> Where:
    return Where(acquired.deciding_log, acquired.deciding_cluster)


def _owner_of(acquired: Acquired, sink: KafkaSink) -> KafkaSink | None:
    """Return the sink whose ledger is the deciding log, if this ledger is on the cluster of ``sink``.

    The ledger contains a record of the same run, because a driver acquires the ledgers of all its sinks.
    """
    there = replace(sink, ledger_topic=acquired.deciding_log)
    if not stores(there, _place(acquired)):
        return None
    with closing(there.create_decision_log()) as log:
        entries = () if log.identity() == ABSENT else log.contents(until=None, whoever=True).entries
        for _, record in entries:
            if isinstance(record, Acquired) and record.run == acquired.run:
                return replace(there, name=record.sink)
    return None
