"""End the transactional query, and record which rows the old sink must not write again (``twopc migrate rollback``)."""

from __future__ import annotations

from contextlib import closing
from dataclasses import dataclass
from typing import TYPE_CHECKING

import msgspec

from twopc.binding import Binding
from twopc.coordinator import Coordinator
from twopc.errors import ConfigurationError
from twopc.integration.migrate.cutover import last_batch
from twopc.integration.migrate.deciding import sinks_of
from twopc.integration.migrate.handover import Handover, Handovers, Kind
from twopc.integration.migrate.skipped import require_none_skipped
from twopc.integration.spark.checkpoint import query_id, read_batch
from twopc.override import Overrides, ResumeAt
from twopc.recovery import Outcome
from twopc.settings import Settings

if TYPE_CHECKING:
    from collections.abc import Sequence

    from twopc.integration.migrate.place import Place
    from twopc.sinks.kafka import KafkaSink


@dataclass(frozen=True, kw_only=True)
class WayBack:
    """The result of a rollback.

    Attributes:
        handover: the hand-over that is now in effect.
        decided: the last batch that the transactional sink has made visible; None if it has not made any batch visible, or if the
            query was not fenced.
        not_reached: the query's sinks that the command cannot reach. If there are any, the command has not fenced the query.
    """

    handover: Handover
    decided: int | None
    not_reached: Sequence[str] = ()


def roll_back(place: Place, sink: KafkaSink) -> WayBack:
    """Fence the query, complete its last decision, abort undecided transactions, and record the hand-over.

    A query with a sink on another cluster cannot be fenced. Such a query must therefore have finished its last batch and ended
    before the call.

    A second call is safe.

    Raises:
        ConfigurationError: no transactional query has used the checkpoint, the checkpoint has more than one unfinished batch,
            a batch was skipped (see :func:`require_none_skipped`), or the query cannot be fenced and has an unfinished batch.
        CommitBlockedError, InDoubtError: the last decision cannot be completed now. Nothing was recorded.
        TwoPhaseCommitError: recovery was refused or failed. Nothing was recorded.
    """
    files, own = place.files, place.writable()
    handovers = Handovers(own)
    previous = handovers.newest()
    if previous is None and not Binding(own).sinks:
        raise ConfigurationError(
            f"{files.location} contains no hand-over, and no transactional query has used it, so there is no cut-over to "
            "roll back. Nothing was done. Check --checkpoint"
        )
    batch_id, is_finished = last_batch(files)
    name = query_id(files)
    batch = read_batch(files, name, batch_id)
    finished = Handover(query_id=name, batch_id=batch_id, offsets=batch.offsets, kind=Kind.NOTHING, is_back=True)
    sinks = sinks_of(name, sink, own)
    if sinks.elsewhere:
        if not is_finished:
            raise _not_reached(sinks.elsewhere, batch_id, sink)
        # Spark records a batch only after all of its rows are visible in every sink, so no decision is left to complete.
        handovers.add(finished)
        return WayBack(handover=finished, decided=None, not_reached=sinks.elsewhere)
    # This run decides nothing, so a gap before the batch (from a second cut-over) does no harm.
    settings = Settings(overrides=Overrides(adopt_query_id=name, resume_at=ResumeAt(batch_id, name)))
    with closing(Coordinator(sinks.here, own, settings=settings)) as coordinator:
        run = coordinator.recover(batch)  # commits the last decision again, and sweeps undecided transactions
        if run.outcome is not Outcome.COMMITTED:
            raise ConfigurationError(
                f"it is not proven that the last decision was committed ({run.outcome.value}). Nothing was recorded. "
                "Start the transactional query again. It will commit the decided rows, or report what to do"
            )
        run.sweep()
        decided = run.view.highest_batch_of(name)
    require_none_skipped(place, previous, name, batch_id - (not is_finished), decided)
    facts = finished
    if not is_finished and decided == batch_id:
        facts = msgspec.structs.replace(finished, kind=Kind.WHOLE)
    elif not is_finished and previous is not None and (previous.batch_id, previous.kind) == (batch_id, Kind.REST):
        # The output contains those rows of the batch that the old sink wrote before the cut-over.
        facts = msgspec.structs.replace(previous, is_back=True)
    elif not is_finished:
        # No part of the batch is visible, so the previous batch was the last one written.
        before = batch.offsets_of(batch_id - 1) or ()
        facts = msgspec.structs.replace(finished, batch_id=batch_id - 1, offsets=before)
    handovers.add(facts)
    return WayBack(handover=facts, decided=decided)


def _not_reached(what: Sequence[str], batch_id: int, sink: KafkaSink) -> ConfigurationError:
    return ConfigurationError(
        f"batch {batch_id} is unfinished. The query also uses {' and '.join(what)}, but this command connects only to the "
        f"Kafka cluster {sink.bootstrap_servers}, so it cannot complete the batch. Nothing was done. Start the "
        "transactional query again with trigger(availableNow=True), and wait until that query ends on its own. After that, "
        "every batch is finished. Run this command again, and start the old query. If the transactional query refuses "
        "to start because an earlier rollback has returned the checkpoint to the old sink, that query has not decided the batch. "
        "In that case, start the old query"
    )
