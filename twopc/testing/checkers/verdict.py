"""Run all checkers on one Kafka sink, after the faults have ended and the cluster is at rest."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from twopc.records import Decision, Record, Repair
from twopc.testing.checkers.aborted_reads import aborted_reads
from twopc.testing.checkers.equality import unequal
from twopc.testing.checkers.history import Decided, Position, Producer, Row, SourceOf, Violation, source_in_value
from twopc.testing.checkers.ledger import disagreeing
from twopc.testing.checkers.log_dump import dump
from twopc.testing.checkers.open_transactions import left_open, states_of
from twopc.testing.checkers.order import inverted
from twopc.testing.checkers.stall import stalled
from twopc.testing.checkers.watcher import Watcher
from twopc.testing.checkers.whole_transactions import torn

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from twopc.sinks.kafka import KafkaSink

_DRIVER_PARTITION = 0
_COMES_TO_REST_S = 3.0


def verdict(  # noqa: PLR0913 - a history has this many parts
    sink: KafkaSink,
    bootstrap_servers: str,
    watcher: Watcher,
    given: Mapping[Position, Row],
    *,
    source_of: SourceOf = source_in_value,
    stall_bound_s: float,
) -> list[Violation]:
    """Collect the history and return every broken promise.

    Args:
        sink: the sink to check, with its output, ledger and transactions. The sink's ledger must never have been truncated.
        bootstrap_servers: the addresses of the cluster itself, not of a proxy.
        watcher: a watcher that has read the output from the start.
        given: the expected output for each source record.
        source_of: returns the source record of an output record.
        stall_bound_s: how long open transactions may hold readers back, in seconds.
    """
    assert sink.topic is not None, "one output topic"
    left = _left_open(sink, bootstrap_servers)
    observed = watcher.catch_up()
    with Watcher(bootstrap_servers, sink.topic) as afterwards:
        final = afterwards.catch_up()
    with Watcher(bootstrap_servers, sink.ledger) as reader:
        keys = [row.key for row in reader.catch_up() if row.position.partition != _DRIVER_PARTITION]
    markers = [key.decode() for key in keys if key is not None]  # a barrier has no key
    log = dump(bootstrap_servers, sink.topic)
    samples = watcher.stable_offsets
    assert samples, "the watcher took no sample of the last stable offset"
    return [
        *unequal(given, final, source_of),
        *inverted(final, source_of),
        *aborted_reads(observed, log, final),
        *torn(final, log),
        *disagreeing(decided_of(sink), final, log, markers),
        *left,
        *stalled(samples, bound_s=stall_bound_s),
    ]


def _left_open(sink: KafkaSink, bootstrap_servers: str) -> list[Violation]:
    """Find transactions that are still open after a while.

    The wait is needed because Kafka responds to EndTxn before it writes the markers.
    """
    deadline = time.monotonic() + _COMES_TO_REST_S
    while (left := left_open(states_of(bootstrap_servers, f"{sink.name}."))) and time.monotonic() < deadline:
        time.sleep(0.1)
    return left


def decided_of(sink: KafkaSink) -> list[Decided]:
    """Return the handles in the ledger's decisions and repairs."""
    ledger = sink.create_decision_log()
    try:
        return _holding(sink, [entry.record for entry in ledger.inspect().entries])
    finally:
        ledger.close()


def _holding(sink: KafkaSink, records: Iterable[Record]) -> list[Decided]:
    """Return the valid handles.

    A decision replaces an earlier decision for the same batch, and a repair replaces the transactions that it lists.
    """
    held: dict[tuple[str, int], dict[int, Decided]] = {}
    for record in records:
        if not isinstance(record, (Decision, Repair)):
            continue
        handles = {
            task.partition: sink.decode_handle(task.handles[sink.name])
            for task in record.tasks
            if sink.name in task.handles
        }
        of_batch = held.setdefault((record.query_id, record.batch_id), {})
        gone = (
            of_batch.keys()
            if isinstance(record, Decision)
            else {task for name, task in record.replaces if name == sink.name}
        )
        for task in list(gone):
            of_batch.pop(task, None)
        of_batch |= {
            task: Decided(handle.uuid, Producer(handle.producer_id, handle.producer_epoch), handle.rows)
            for task, handle in handles.items()
        }
    return [decided for of_batch in held.values() for decided in of_batch.values()]
