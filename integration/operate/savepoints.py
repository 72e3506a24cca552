"""Run ``twopc savepoint create | list | restore | stop-with-savepoint`` with parsed options."""

from __future__ import annotations

import time
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from twopc.counted import counted
from twopc.errors import ConfigurationError
from twopc.integration.operate import manifest as manifests
from twopc.integration.operate.printing import ATTENTION, DONE, Answer, show_lines
from twopc.integration.operate.request import request_savepoint
from twopc.integration.operate.restore import restore_savepoint
from twopc.integration.operate.savepoint import create_savepoint
from twopc.integration.operate.subject import subject_of

if TYPE_CHECKING:
    from pathlib import Path

    from twopc.integration.operate.manifest import Savepoint
    from twopc.integration.operate.subject import Connection


def create(checkpoint: Path, directory: Path, connection: Connection) -> Answer:
    """Take a savepoint.

    Raises:
        TwoPhaseCommitError: the savepoint could not be taken. No partial copy is left.
    """
    sinks = subject_of(f"{checkpoint}/", connection).sinks
    return _taken(create_savepoint(checkpoint, directory, sinks=sinks))


def stop(checkpoint: Path, directory: Path, timeout_s: float) -> Answer:
    """Make a running query take a savepoint and then stop.

    Raises:
        TwoPhaseCommitError: the query did not stop, and continues.
    """
    found = request_savepoint(checkpoint, directory, stop=True, timeout_s=timeout_s)
    assert found is not None  # without `is_over`, only a response or an error ends the wait
    return _taken(found)


def list_savepoints(directory: Path, *, is_thorough: bool) -> Answer:
    """List the savepoints in a directory, newest first.

    Raises:
        ConfigurationError: the directory does not exist.
    """
    found, problems = manifests.savepoints_in(directory)
    good = []
    for one in found:
        try:
            if is_thorough:
                manifests.check(one)
        except ConfigurationError as error:
            problems.append(str(error))
        else:
            good.append(one)
    facts = {"savepoints": [_facts(one) for one in good], "problems": problems}
    lines = [_line(one) for one in good] or [f"{directory} contains no savepoints"]
    return Answer(ATTENTION if problems else DONE, facts, show_lines([*lines, *problems]))


def restore(savepoint: Path, checkpoint: Path, connection: Connection) -> Answer:
    """Restore a savepoint to a new checkpoint, and show which output the new query will duplicate.

    Raises:
        TwoPhaseCommitError: the savepoint could not be restored. No partial copy is left.
    """
    found = manifests.choose(savepoint)
    done = restore_savepoint(found.path, checkpoint, sinks=connection.bound_sinks(found.manifest.sinks))
    behind = done.savepoint.manifest.batch_id
    lines = [
        f"Restored {done.savepoint.path} to {checkpoint}. The new query, {done.query_id}, will continue after batch {behind}.",
        *(f"{one.text[0].upper()}{one.text[1:]}." for one in done.repeated),
    ]
    if not done.repeated:
        lines.append(
            "The output of every batch that was decided after the savepoint will be duplicated. To see which batches "
            "these are, add --bootstrap-servers."
        )
    if done.to_check is not None:
        lines.append(f"{done.to_check}.")
    lines += [
        (
            f"To replace the old query permanently, use exactly_once(…, {done.settings}) when you start the new query for "
            "the first time."
        ),
        f"To keep both queries, rename the sinks, and pass only override=AdoptQuery({done.query_id!r}).",
    ]
    return Answer(DONE, done.facts(), show_lines(lines))


def _taken(found: Savepoint) -> Answer:
    return Answer(DONE, _facts(found), show_lines([_line(found)]))


def _facts(found: Savepoint) -> dict[str, Any]:
    one = found.manifest
    positions = {name: {"log": at.log, "decided": at.decided, "end": at.end} for name, at in one.positions.items()}
    return {
        "path": str(found.path),
        "query_id": one.query_id,
        "batch_id": one.batch_id,
        "at_ms": one.at_ms,
        "bytes": found.size,
        "files": len(one.files),
        "taken_from": one.taken_from,
        "is_periodic": one.is_periodic,
        "positions": positions,
    }


def _line(found: Savepoint) -> str:
    one, when = found.manifest, "?"
    with suppress(OverflowError, ValueError):
        when = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(one.at_ms / 1000))
    return (
        f"{found.path}: batch {one.batch_id} of query {one.query_id}, {when}, {counted(len(one.files), 'file')}, "
        f"{found.size:,} bytes"
    )
