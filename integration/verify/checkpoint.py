"""The engine's checkpoint against the decisions: the same batches, with the same source offsets."""

from __future__ import annotations

import contextlib
import json
from typing import TYPE_CHECKING

from integration.spark.checkpoint import decoding, query_id, source_offsets
from integration.verify.findings import Finding, Kind
from integration.verify.sources import ranges
from twopc.binding import Binding
from twopc.errors import ConfigurationError
from twopc.files import Subdirectory

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator

    from integration.verify.history import History
    from twopc.files import Files


@contextlib.contextmanager
def _reading(files: Files) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise ConfigurationError(
            f"the checkpoint {files.location} cannot be read ({error}): correct --checkpoint or the rights there, or leave it out"
        ) from error


def initial_offsets(files: Files) -> dict[str, tuple[str, ...]]:
    """Where the checkpoint's lineage began, as Spark's Kafka source noted it (``sources/<i>/0``); empty where one did not.

    Raises:
        ConfigurationError: the checkpoint cannot be read.
    """
    found: list[str] = []
    with _reading(files):
        for source in range(len(source_offsets(files, 0) or ())):
            name = f"sources/{source}/0"
            # "\0v1\n{…}": the zero byte is for Spark 2.1.0 (SPARK-19517).
            version, _, text = (files.read(name) or b"").partition(b"\n")
            if version != b"\0v1":
                return {}
            with decoding(files, name):
                found.append(json.dumps(json.loads(text), sort_keys=True, separators=(",", ":")))
        return {query_id(files): tuple(found)} if found else {}


def finished_batches(files: Files) -> frozenset[int]:
    """The batches that the engine has finished (``commits/N``). Of a running query, what is decided is to be read after it.

    Raises:
        ConfigurationError: the checkpoint cannot be read.
    """
    with _reading(files):
        return frozenset(_batches(files, "commits"))


def check_checkpoint(files: Files, finished: Collection[int], history: History, ledger: str) -> Iterator[Finding]:
    """Compare.

    Args:
        files: the checkpoint; read only.
        finished: what :func:`finished_batches` gave before the ledger was read.
        history: of the ledger.
        ledger: the deciding ledger's name.

    Raises:
        ConfigurationError: there is no checkpoint, or it cannot be read.
        DecisionLogDamagedError: its binding cannot be read.
    """
    with _reading(files):
        of, begin = query_id(files), history.view.begin
        if begin is not None and of != begin.query_id:
            yield Finding(
                Kind.LINEAGE_DIFFERS,
                files.location,
                f"it is the checkpoint of query {of}; the ledger's open lineage is {begin.query_id}: give that one's checkpoint",
            )
        bound = Binding(Subdirectory(files, "twopc")).log
        if bound is not None and bound != ledger:
            yield Finding(Kind.BINDING_DIFFERS, files.location, f"it is bound to {bound}, not to {ledger}")
        yield from _check_offsets(files, history, of)
        yield from _check_commits(files, finished, history, of)


def _check_offsets(files: Files, history: History, of: str) -> Iterator[Finding]:
    absent = []
    for key, batch in history.batches.items():
        if key.query_id != of:
            continue
        planned = source_offsets(files, key.batch)
        if planned is None:
            absent.append(key.batch)
        elif planned != batch.decision.offsets:
            yield Finding(
                Kind.OFFSETS_DIFFER,
                f"batch {key.batch}",
                f"the checkpoint has {', '.join(planned)}, decided was {', '.join(batch.decision.offsets)}: another history "
                "(an old or copied checkpoint)",
            )
    # The engine drops old batches, also while we look: which ones it has dropped is asked last.
    oldest = min(_batches(files, "offsets"), default=0)
    if absent := [batch for batch in absent if batch >= oldest]:
        yield Finding(
            Kind.OFFSETS_MISSING,
            f"batches {ranges(absent)}",
            "decided, and the checkpoint has no offsets of them: it is older than the ledger",
        )


def _check_commits(files: Files, finished: Collection[int], history: History, of: str) -> Iterator[Finding]:
    decided = [key.batch for key in history.batches if key.query_id == of]
    if not decided:
        return
    if beyond := sorted(batch for batch in finished if batch > decided[-1]):
        yield Finding(
            Kind.COMMITTED_UNDECIDED,
            f"batches {ranges(beyond)}",
            "the query has finished them without the sink, or the ledger lost their decisions",
        )
    # The last one's commit is written after its transactions' commits; the others' are all there since the ledger was read.
    commits = _batches(files, "commits")
    if absent := [batch for batch in decided[:-1] if batch not in commits and batch >= min(commits, default=0)]:
        yield Finding(
            Kind.COMMIT_MISSING,
            f"batches {ranges(absent)}",
            "decided, and followed by further decisions, and yet the checkpoint does not have them finished",
        )


def _batches(files: Files, directory: str) -> set[int]:
    return {int(name) for name in files.names(directory) if name.isdigit()}
