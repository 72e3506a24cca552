"""Check that Spark's checkpoint and the decisions contain the same batches with the same source offsets."""

from __future__ import annotations

import contextlib
import json
from typing import TYPE_CHECKING

from twopc.binding import Binding
from twopc.errors import ConfigurationError
from twopc.files import LocalFiles
from twopc.integration.spark.checkpoint import decoding, numbers, offsets_by_source, query_id, source_offsets
from twopc.integration.spark.former_writers import last_expected, last_former_batch
from twopc.integration.verify.deciding import QueryFacts, Where
from twopc.integration.verify.findings import Finding, Kind
from twopc.integration.verify.sources import ranges
from twopc.offsets import is_same

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Mapping, Sequence

    from twopc.files import Files
    from twopc.integration.verify.history import History
    from twopc.records import Decision
    from twopc.sinks.kafka import KafkaSink


@contextlib.contextmanager
def _reading(files: Files) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise ConfigurationError(
            f"the checkpoint {files.location} cannot be read ({error}). Correct --checkpoint or the directory's "
            "permissions, or omit --checkpoint"
        ) from error


def initial_offsets(files: Files) -> dict[str, tuple[str, ...]]:
    """Read the query's first source offsets, as Spark's Kafka source wrote them to ``sources/<i>/0``.

    Returns:
        The offsets, by query id. The result is empty if a source did not write its offsets.

    Raises:
        ConfigurationError: the checkpoint cannot be read.
    """
    found: list[str] = []
    with _reading(files):
        for source in offsets_by_source(files, 0) or ():
            name = f"sources/{source}/0"
            # "\0v1\n{…}": Spark writes the zero byte for Spark 2.1.0 (SPARK-19517).
            version, _, text = (files.read(name) or b"").partition(b"\n")
            if version != b"\0v1":
                return {}
            with decoding(files, name):
                offset = json.dumps(json.loads(text), sort_keys=True, separators=(",", ":"))
            found.append(offset if source.isdecimal() else f"{source}:{offset}")
        return {query_id(files): tuple(found)} if found else {}


def finished_batches(files: Files) -> frozenset[int]:
    """List the batches that Spark has finished (``commits/N``).

    If the query is running, read the decisions only after this call.

    Raises:
        ConfigurationError: the checkpoint cannot be read.
    """
    with _reading(files):
        return frozenset(numbers(files, "commits"))


def bound_ledger(files: Files, sink: str) -> str | None:
    """Return a sink's ledger, according to a checkpoint, or None if the checkpoint is not bound to this Kafka sink.

    Raises:
        ConfigurationError: the checkpoint cannot be read.
        DecisionLogDamagedError, RefusedStartError: the binding is torn, altered, or from a newer version.
    """
    with _reading(files):
        return Binding(LocalFiles(f"{files.location}/twopc")).sinks.get(sink, {}).get("ledger")


def facts_of(files: Files | None, sinks: tuple[KafkaSink, ...] = ()) -> QueryFacts:
    """Collect the facts about a query from its checkpoint, if one is given. ``sinks`` are the query's Kafka sinks.

    Raises:
        ConfigurationError: the checkpoint cannot be read.
        DecisionLogDamagedError, RefusedStartError: the binding is torn, altered, or from a newer version.
    """
    if files is None:
        return QueryFacts(sinks=sinks)
    own = LocalFiles(f"{files.location}/twopc")
    with _reading(files):
        binding = Binding(own)
        # A ledger's id is unique, but ledgers on different clusters may have the same name, and old brokers assign
        # no ids.
        log = (binding.log, binding.log_identity)
        owner = next((of for of in binding.sinks.values() if (of.get("ledger"), of.get("ledger_id")) == log), None)
        bound = None if owner is None else Where(owner["ledger"], owner["cluster"])
        return QueryFacts(sinks=sinks, query_id=query_id(files), bound=bound, own=own)


def check_checkpoint(files: Files, finished: Collection[int], history: History, ledger: str) -> Iterator[Finding]:
    """Compare a checkpoint with the history of a decision log.

    Args:
        files: the checkpoint.
        finished: the result of :func:`finished_batches`, called before the decision log was read.
        history: the decision log's history.
        ledger: the decision log's name.

    Raises:
        ConfigurationError: the checkpoint does not exist or cannot be read.
        DecisionLogDamagedError: the binding in the checkpoint cannot be read.
    """
    with _reading(files):
        of, begin = query_id(files), history.view.begin
        if begin is not None and of != begin.query_id:
            text = (
                f"the checkpoint belongs to query {of}, but the ledger belongs to query {begin.query_id}. Pass the "
                f"checkpoint of query {begin.query_id}"
            )
            yield Finding(Kind.QUERY_DIFFERS, files.location, text)
        bound = Binding(LocalFiles(f"{files.location}/twopc")).log
        if bound is not None and bound != ledger:
            yield Finding(Kind.BINDING_DIFFERS, files.location, f"the checkpoint is bound to {bound}, not to {ledger}")
        decided = {key.batch: batch.decision for key, batch in history.batches.items() if key.query_id == of}
        yield from _check_offsets(files, decided)
        expected = _last_expected(files, of, history, ledger)
        if expected is not None:
            yield from _check_undecided(finished, expected)
        yield from _check_commits(files, list(decided))


def _last_expected(files: Files, of: str, history: History, ledger: str) -> int | None:
    """Return the last batch that the query may have finished; None if the log's decisions do not show it."""
    own, decided = LocalFiles(f"{files.location}/twopc"), history.view.highest_batch_of(of)
    if decided is None and history.view.begin is not None:
        # The log is open for another query, which may have ended this one.
        decided = max((key.batch for key in history.batches if key.query_id == of), default=None)
        if decided is None:
            return None
    return last_expected(ledger, decided, bound=Binding(own).log, former=last_former_batch(own, of))


def _check_offsets(files: Files, decided: Mapping[int, Decision]) -> Iterator[Finding]:
    absent = []
    for batch, decision in decided.items():
        planned = source_offsets(files, batch)
        if planned is None:
            absent.append(batch)
        elif not is_same(decision.offsets, planned):
            text = (
                f"the checkpoint contains the offsets {', '.join(planned)}, but the decision contains "
                f"{', '.join(decision.offsets)}. The checkpoint was restored from a backup, or is a copy"
            )
            yield Finding(Kind.OFFSETS_DIFFER, f"batch {batch}", text)
    # Spark deletes old batches, even during this check. So list the remaining batches last.
    oldest = min(numbers(files, "offsets"), default=0)
    if absent := [batch for batch in absent if batch >= oldest]:
        text = (
            "these batches were decided, but the checkpoint contains no offsets for them, so the checkpoint is older than "
            "the ledger"
        )
        yield Finding(Kind.OFFSETS_MISSING, f"batches {ranges(absent)}", text)


def _check_undecided(finished: Collection[int], expected: int) -> Iterator[Finding]:
    if beyond := sorted(batch for batch in finished if batch > expected):
        text = (
            "Spark finished these batches, but they were never decided. The query ran without the sink, another sink wrote "
            "these batches, or the ledger lost decisions"
        )
        yield Finding(Kind.COMMITTED_UNDECIDED, f"batches {ranges(beyond)}", text)


def _check_commits(files: Files, decided: Sequence[int]) -> Iterator[Finding]:
    # Spark writes commits/N after the sink's commit. So the last decided batch is the only batch whose file may be missing.
    commits = numbers(files, "commits")
    if absent := [batch for batch in decided[:-1] if batch not in commits and batch >= min(commits, default=0)]:
        text = (
            "these batches and later batches were decided, but the checkpoint does not record these batches as finished"
        )
        yield Finding(Kind.COMMIT_MISSING, f"batches {ranges(absent)}", text)
