"""Take a savepoint of a stopped or running query: a copy of its checkpoint at the end of a batch.

The copy is consistent even while the query runs. Spark never changes a checkpoint's files. Spark only adds and deletes files.
Spark writes ``commits/N`` after the offsets and the state (version N + 1) of batch N, and after ``foreachBatch`` has returned.
By then, the batch is visible in every sink, unless the user's function swallows the toolkit's errors. So a copy also
needs a decision for batch N. The files up to batch N form a consistent copy, even while Spark adds more files. Spark
deletes files that are ``minBatchesToRetain`` batches old. If Spark deletes a file from batch N before the file is
copied, the copy starts again. A RocksDB snapshot refers to files that Spark deletes before the snapshot itself. The snapshot
may therefore be copied although such a file is gone, so the copy is checked for each of these files.

Source logs (``sources/``) are copied completely. If a source log has an entry beyond batch N, the copy looks as if
Spark had died before planning batch N + 1.
"""

from __future__ import annotations

import logging
import re
import time
from contextlib import closing, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Final

from twopc.errors import ConfigurationError, RefusedStartError, RetriableError
from twopc.files import LocalFiles
from twopc.integration.history.reader import HistoryError, read
from twopc.integration.history.writer import DIRECTORY as HISTORY
from twopc.integration.local_paths import local_path
from twopc.integration.operate.checkpoint import read_checkpoint
from twopc.integration.operate.durable import copy, whole_directory, write
from twopc.integration.operate.listing import files_in
from twopc.integration.operate.manifest import NAME, TREE, Manifest, Position, Savepoint, directory_name
from twopc.integration.operate.rocksdb import UnknownFilesError, missing_files
from twopc.integration.spark.checkpoint import numbers, query_id, source_offsets
from twopc.integration.spark.former_writers import last_expected
from twopc.integration.state_files import newest_snapshots, state_version
from twopc.integration.verify.cluster import Cluster
from twopc.integration.verify.deciding import DecisionsElsewhereError
from twopc.log_view import fold
from twopc.new_checkpoint import FROM_MISSING
from twopc.register_reader import RegisterReader
from twopc.sealed import seal

if TYPE_CHECKING:
    from collections.abc import Sequence
    from collections.abc import Set as AbstractSet

    from twopc.integration.operate.checkpoint import CheckpointState
    from twopc.log_view import LogView
    from twopc.sinks.kafka import KafkaSink

logger = logging.getLogger(__name__)

_TRIES: Final = 5
#: This toolkit's files that a copy does not need: staged rows, requests to a running query, and the record of its alerts.
_LEFT_OUT: Final = re.compile(r"twopc/(staging/|savepoint-request|alerts\.json/)")

#: What to do if the finished batch is not decided. The first text applies if earlier batches of the query were decided. The
#: second text applies if no batch was decided.
_SOME_DECIDED: Final = (
    "Fix the foreachBatch function, and restart the query. The query will refuse to start, and its error message will say "
    "how to write the missing batches"
)
_NONE_DECIDED: Final = (
    "If another sink wrote these batches, and left no batch unfinished, start the query once with "
    "override=AdoptQuery({query!r}), and take the savepoint after its first batch. Otherwise, fix the foreachBatch function, "
    f"and {FROM_MISSING}"
)


def create_savepoint(
    checkpoint: Path, directory: Path, *, sinks: Sequence[KafkaSink] = (), is_periodic: bool = False
) -> Savepoint:
    """Copy a checkpoint as it was at the end of its last finished batch.

    Args:
        checkpoint: the query's checkpoint; the query may be running.
        directory: where savepoints are stored. The new savepoint is a subdirectory.
        sinks: Kafka sinks. The savepoint also records the position in each sink's decision log. This function only
            reads from the sinks.
        is_periodic: whether the query takes the savepoint automatically, and may delete it when newer savepoints exist.

    Raises:
        ConfigurationError: the checkpoint does not exist or has no finished batch, Spark has finished batches that are not
            decided, a directory in the checkpoint is a symbolic link, or a file cannot be read or written.
        RetriableError: the query deletes its files faster than this function copies them.
        TwoPhaseCommitError: no broker responds.
    """
    checkpoint, directory = local_path(checkpoint), local_path(directory)
    found = read_checkpoint(checkpoint)
    vanished = ""
    for _ in range(_TRIES):
        # The positions are read first, so the newest finished batch may be ahead of them.
        positions = _positions(sinks)
        finished = max(numbers(LocalFiles(checkpoint), "commits"), default=None)
        if finished is None:
            raise ConfigurationError(
                f"{checkpoint} contains no finished batch yet. No savepoint was taken. Try again after the first batch"
            )
        _require_decided(found, finished, sinks)
        try:
            return _copy(directory, found, finished, positions, is_periodic=is_periodic)
        except _VanishedError as error:
            vanished = str(error)
            logger.warning(
                "the copy of batch %d is incomplete, because Spark has since deleted %s. Trying a later batch",
                finished,
                error,
            )
        except OSError as error:
            raise ConfigurationError(f"the savepoint cannot be written: {error}. No partial copy is left") from error
    raise RetriableError(
        f"{checkpoint}: Spark deleted files before they could be copied, most recently {vanished}. No savepoint was taken. Stop "
        "the query, or raise its option spark.sql.streaming.minBatchesToRetain. If the query was already stopped, its "
        "checkpoint is damaged: restore these files from a backup"
    )


def missing_batches(highest: int | None, batch: int, where: str) -> str | None:
    """Say which batches are missing if ``highest`` is the last decided batch in ``where``; None if none is missing.

    Spark moves past a batch as soon as the user's function returns, even if the function has swallowed the toolkit's
    error.
    """
    if highest is None or highest >= batch:
        return None
    are = f"batch {batch} is" if highest + 1 == batch else f"batches {highest + 1} to {batch} are"
    last = "no batch has been decided" if highest < 0 else f"the last decided batch is {highest}"
    return (
        f"{are} not in {where}: Spark has finished batch {batch}, but {last}. The query "
        "ran without its sinks, for example because its foreachBatch function swallows errors. A query that starts "
        f"after batch {batch} will never write the missing rows"
    )


def _require_decided(found: CheckpointState, finished: int, sinks: Sequence[KafkaSink]) -> None:
    """Require a decision for the finished batch, wherever this process can read the decisions.

    The decisions are read after Spark's files, because Spark finishes a batch after its decision. Another sink may have
    written the batches before the query's first decision.
    """
    now = read_checkpoint(Path(found.location))
    decided: dict[str, int | None] = {}
    if now.registers is not None and now.registers.damage is None:
        decided[str(now.log)] = now.decided
    elif now.log is None and _has_run(now):
        decided["any decision log"] = None  # the checkpoint is bound before the first decision
    for sink in sinks:
        with suppress(DecisionsElsewhereError):
            name, view, _ = _ledger(sink)
            # Another query's log says nothing about this query. The other query may have ended this query.
            if view.begin is None or view.begin.query_id == now.query_id:
                decided[name] = view.highest_batch_of(now.query_id)
    for where, highest in decided.items():
        expected = last_expected(where, highest, bound=now.log, former=now.former)
        missing = missing_batches(expected, finished, where)
        if missing is not None:
            remedy = _NONE_DECIDED.format(query=now.query_id) if highest is None else _SOME_DECIDED
            raise ConfigurationError(f"{missing}. No savepoint was taken. {remedy}")


def _has_run(checkpoint: CheckpointState) -> bool:
    """Whether a run with this toolkit has attempted batches. Even a run without a decision leaves a register or a history."""
    own = LocalFiles(Path(checkpoint.location) / "twopc")
    return bool(RegisterReader(own).numbers()) or (bool(own.names(HISTORY)) and not _has_skipped_nothing(checkpoint))


def _has_skipped_nothing(checkpoint: CheckpointState) -> bool:
    """Whether, according to the history, the user's function cannot have skipped a batch.

    Spark finishes the batch of a failed attempt only if the function has swallowed the error, or if another sink has written
    the batch since. After a refused start, assume that another sink has written the batch, because the message tells the user
    to adopt the query first. Do not assume this if the refused run attempted another batch, too.
    """
    try:
        attempts = read(Path(checkpoint.location)).checkpoints
    except HistoryError:
        return False
    finished = -1 if checkpoint.finished is None else checkpoint.finished
    passed = [one for one in attempts if one.batch_id <= finished]
    is_refused = all(one.cause is not None and one.cause.error == RefusedStartError.__name__ for one in passed)
    runs = {one.run_id for one in passed}
    batches = {(one.run_id, one.batch_id) for one in attempts if one.run_id in runs}
    return is_refused and len(batches) == len(runs)


class _VanishedError(Exception):
    """A file that batch N needs was deleted before it was copied."""


def _positions(sinks: Sequence[KafkaSink]) -> dict[str, Position]:
    """Read each sink's position. A sink whose decisions are on another cluster has no position, and needs none."""
    found = {}
    for sink in sinks:
        with suppress(DecisionsElsewhereError):
            found[sink.name] = _position(sink)
    return found


def _position(sink: KafkaSink) -> Position:
    name, view, end = _ledger(sink)
    return Position(log=name, decided=view.highest_batch, end=end)


def _ledger(sink: KafkaSink) -> tuple[str, LogView, int]:
    """Read the sink's decisions: the log's name, its facts, and the position after its last record."""
    with closing(Cluster(sink)) as cluster:
        ledgers = cluster.ledgers()
    end = max((entry.offset + 1 for entry in ledgers.deciding.entries), default=0)
    return ledgers.name, fold(ledgers.deciding), end


def _copy(
    directory: Path, found: CheckpointState, batch: int, positions: dict[str, Position], *, is_periodic: bool
) -> Savepoint:
    checkpoint = Path(found.location)
    at_ms = int(time.time() * 1000)
    target = directory / directory_name(batch, at_ms)
    files = LocalFiles(checkpoint)
    offsets = source_offsets(files, batch)
    with whole_directory(target) as unfinished:
        copied, vanished = {}, []
        for name in _wanted(checkpoint, batch):
            try:
                copied[name] = copy(checkpoint / name, unfinished / TREE / name)
            except FileNotFoundError:
                vanished.append(name)
        _require_whole(copied.keys(), vanished, batch, unfinished / TREE)
        if offsets is None:
            raise _VanishedError(f"offsets/{batch}")
        manifest = Manifest(
            query_id=query_id(files),
            batch_id=batch,
            offsets=offsets,
            taken_from=str(checkpoint.resolve()),
            at_ms=at_ms,
            log=found.log,
            sinks={name: dict(facts) for name, facts in found.sinks.items()},
            positions=positions,
            files=copied,
            is_periodic=is_periodic,
        )
        write(unfinished / NAME, seal(manifest))
    return Savepoint(target, manifest)


def _wanted(checkpoint: Path, batch: int) -> list[str]:
    """List the files that a copy of batch N may need.

    The state versions come first, because they refer to RocksDB files that are older than the versions.
    """
    wanted = [name for name in files_in(checkpoint, _LEFT_OUT) if _belongs(name, batch)]
    return sorted(wanted, key=lambda name: state_version(name) is None)


def _belongs(name: str, batch: int) -> bool:
    directory, _, file = name.rpartition("/")
    if directory in {"offsets", "commits"}:
        return file.isdigit() and int(file) <= batch
    version = state_version(name)
    return version is None or version[0] <= batch + 1


def _require_whole(names: AbstractSet[str], vanished: Sequence[str], batch: int, tree: Path) -> None:
    """Check that the copy contains every file that a restart after the batch reads.

    A restart reads only the newest snapshot in each directory, and the changes after it.
    """
    needed = {"metadata", f"offsets/{batch}", f"commits/{batch}"} | ({f"offsets/{batch - 1}"} if batch else set())
    if missing := sorted(needed - names):
        raise _VanishedError(", ".join(missing))
    bases = newest_snapshots(names)
    for name in vanished:
        directory, _, file = name.rpartition("/")
        version = state_version(name)
        is_old = version is not None and version[0] < bases[directory]
        is_old |= directory in {"offsets", "commits"} and int(file) < batch - 1
        # These may be RocksDB files of deleted versions. Those that the newest snapshot needs are required below.
        is_old |= directory.startswith("state/") and version is None
        # These files of the toolkit are only for people to read; a restored query starts with new files.
        is_old |= name.startswith("twopc/")
        if not is_old and not file.endswith(".crc"):
            raise _VanishedError(name)
    try:
        missing = missing_files(tree, names)
    except UnknownFilesError as error:
        raise ConfigurationError(
            f"{error}. The copy might lack some of these files. No savepoint was taken. Either the snapshot is damaged, or it "
            "was written by a version of Spark that this toolkit does not know. If the query can start with this checkpoint, "
            "stop the query, and copy the checkpoint's whole directory instead"
        ) from error
    if missing:
        raise _VanishedError(", ".join(missing))
