"""Find the log that contains a query's decisions. The ledger of the query's dead-letter sink may contain them.

All sinks of a query share one log. Each driver writes its name to every sink's ledger when it acquires the sink.
"""

from __future__ import annotations

from contextlib import closing
from dataclasses import replace
from typing import TYPE_CHECKING

from twopc.binding import Binding
from twopc.decision_log import ABSENT
from twopc.errors import ConfigurationError
from twopc.log_view import LogView, fold
from twopc.records import Acquired
from twopc.refusals import damaged
from twopc.sinks.kafka import KafkaSink

if TYPE_CHECKING:
    from collections.abc import Iterable

    from twopc.files import Files


def decided_by(query_id: str, sink: KafkaSink, sinks: Iterable[object]) -> int | None:
    """Return the last batch that the query has decided. Return None if the query has decided no batch.

    Args:
        query_id: the query.
        sink: one of the query's sinks. Its ledger names the log that contains the decisions.
        sinks: all of the query's sinks.

    Raises:
        ConfigurationError: that log belongs to none of the sinks.
        TwoPhaseCommitError: a log is damaged, or cannot be read.
    """
    view = _view_of(sink)
    acquired = _acquired(view, query_id)
    if acquired is None or acquired.deciding_log == sink.ledger:
        return view.highest_batch_of(query_id)
    for other in sinks:
        if isinstance(other, KafkaSink) and other.ledger == acquired.deciding_log:
            return _view_of(other).highest_batch_of(query_id)
    raise ConfigurationError(
        f"query {query_id} stores its decisions in {acquired.deciding_log}, the ledger of a sink that is no longer "
        "passed to exactly_once(). Nothing was written. Pass that sink (it may be the dead-letter sink) again under "
        "the same name, and restart"
    )


def sinks_of(query_id: str, sink: KafkaSink, own: Files) -> list[KafkaSink]:
    """Return the query's sinks: ``sink``, and any other sink that takes part in the query's decisions.

    Args:
        query_id: the query.
        sink: one of the query's sinks; its settings are used to connect. The other sinks must be on the same cluster.
        own: the toolkit's directory in the checkpoint.

    Raises:
        ConfigurationError: ``sink`` is not one of the query's sinks, or another of the query's sinks is on a different
            cluster.
        TwoPhaseCommitError: a log is damaged, or cannot be read.
    """
    bound = Binding(own).sinks
    if bound and sink.name not in bound:
        raise ConfigurationError(
            f"{own.location}: the query writes to {', '.join(sorted(bound))}, but not to sink {sink.name!r}. Nothing "
            "was done. Check --sink"
        )
    ledgers = {sink.name: sink.ledger}
    for name, facts in bound.items():
        if "ledger" not in facts or facts["cluster"] != bound[sink.name]["cluster"]:
            raise _elsewhere(f"sink {name!r}", sink)
        ledgers.setdefault(name, facts["ledger"])
    # A query binds its sinks just before its first decision. Until then, only the sink's ledger names the deciding log.
    acquired = _acquired(_view_of(sink), query_id)
    if acquired is not None and acquired.deciding_log not in ledgers.values():
        ledgers[_owner_of(acquired, sink)] = acquired.deciding_log
    return [sink, *(replace(sink, name=name, ledger_topic=ledgers[name]) for name in ledgers if name != sink.name)]


def _view_of(sink: KafkaSink) -> LogView:
    with closing(sink.create_decision_log()) as log:
        view = fold(log.inspect())
    if view.damage is not None:
        raise damaged(view, sink.ledger)
    return view


def _acquired(view: LogView, query_id: str) -> Acquired | None:
    """Return the record of the last driver that has acquired the log. Return None if it was a driver of another query."""
    return view.acquired if view.acquired is not None and view.acquired.query_id == query_id else None


def _owner_of(acquired: Acquired, sink: KafkaSink) -> str:
    """Return the name of the sink whose ledger is the deciding log. The driver has acquired that ledger in the same run."""
    with closing(replace(sink, ledger_topic=acquired.deciding_log).create_decision_log()) as log:
        entries = () if log.identity() == ABSENT else log.contents(until=None, whoever=True).entries
        for _, record in entries:
            if isinstance(record, Acquired) and record.run == acquired.run:
                return record.sink
    raise _elsewhere(f"the sink whose ledger is {acquired.deciding_log}", sink)


def _elsewhere(what: str, sink: KafkaSink) -> ConfigurationError:
    return ConfigurationError(
        f"the query also uses {what}, which is not on the Kafka cluster {sink.bootstrap_servers}. The command connects "
        "only to that cluster, so it cannot fence the query. Nothing was done. Start the transactional query again "
        "with trigger(availableNow=True), and wait until that query ends on its own. Then no batch is unfinished, and "
        "you can start the old query without TakeOver"
    )
