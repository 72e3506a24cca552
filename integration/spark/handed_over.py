"""Reject a batch that another sink has begun, unless ``twopc.integration.migrate.TakeOver`` completes the batch.

``twopc migrate cutover`` records the batch in a file below the checkpoint (``twopc.integration.migrate.handover``).
Without ``TakeOver``, this query would write the complete batch, and would duplicate the rows that are already in the output.
"""

from __future__ import annotations

import contextlib
import re
from contextvars import ContextVar
from typing import TYPE_CHECKING, Final, NamedTuple

import msgspec

from twopc.errors import ConfigurationError
from twopc.sealed import unseal_file

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from twopc.batch import Batch
    from twopc.files import Files

#: The names of the files that record hand-overs; the newest file is in effect.
_NAME: Final = re.compile(r"handover-(\d+)\.json")
#: The format number of these files; any other format is rejected.
FORMAT: Final = 1
#: The remedy for a damaged file.
REMEDY: Final = "Remove the file, and run `twopc migrate cutover` again"
_REST: Final = "rest"


class _Rest(NamedTuple):
    """The rows that ``TakeOver`` passes on."""

    batch_id: int
    rows: object


_passing: ContextVar[_Rest | None] = ContextVar("twopc_taken_over", default=None)
_check: ContextVar[Callable[[], None] | None] = ContextVar("twopc_check_of_take_over", default=None)


class HandoverFacts(msgspec.Struct):
    """The fields of a hand-over that a query reads. ``twopc.integration.migrate.handover.Handover`` has all fields."""

    query_id: str
    batch_id: int
    kind: str
    is_back: bool = False

    @property
    def is_half_written(self) -> bool:
        """Whether the other sink has begun the batch, and has not finished it."""
        return self.kind == _REST

    def began(self, batch: Batch) -> bool:
        """Whether the other sink has begun this batch, and has not finished it."""
        is_this = (self.query_id, self.batch_id) == (batch.query_id, batch.batch_id)
        return is_this and self.is_half_written and not self.is_back

    @property
    def last_finished(self) -> int:
        """The last batch that the other sink has finished; -1 if it has finished none."""
        return self.batch_id - self.is_half_written


@contextlib.contextmanager
def passing_the_rest(batch_id: int, rows: object) -> Iterator[None]:
    """While the body runs, mark that ``TakeOver`` passes on the missing rows of this batch."""
    token = _passing.set(_Rest(batch_id, rows))
    try:
        yield
    finally:
        _passing.reset(token)


def require_passed_on(rows: object, batch_id: int) -> None:
    """Check that no interceptor after ``TakeOver`` has replaced the rows that ``TakeOver`` has compared with the output.

    Raises:
        ConfigurationError: the rows to write are not the rows that ``TakeOver`` has passed on.
    """
    rest = _passing.get()
    if rest is not None and rows is not rest.rows:
        raise ConfigurationError(
            f"an interceptor that comes after TakeOver has changed the rows of batch {batch_id}. TakeOver compared the "
            "original rows with the output, so it could have passed on the wrong rows. Nothing was written. Make TakeOver the "
            "last interceptor, and restart"
        )


@contextlib.contextmanager
def checked_once_swept(check: Callable[[], None]) -> Iterator[None]:
    """While the body runs, let the query's start call ``check`` after the start has ended the query's open transactions.

    These transactions hide later records, so ``TakeOver`` itself cannot see everything that was written since the hand-over.
    """
    token = _check.set(check)
    try:
        yield
    finally:
        _check.reset(token)


def check_once_swept() -> None:
    """Run the check of :func:`checked_once_swept`, if there is one.

    Raises:
        TwoPhaseCommitError: the check has failed. The batch must not be written.
    """
    check = _check.get()
    if check is not None:
        check()


def newest_handover(files: Files) -> tuple[str, HandoverFacts] | None:
    """Read the hand-over in effect, and its file's name. Return None if no hand-over was recorded.

    Args:
        files: the directory ``<checkpoint>/twopc``.

    Raises:
        ConfigurationError: the file cannot be read.
    """
    number = newest_number(files)
    if not number:
        return None
    name = file_of(number)
    where = f"{files.location}/{name}"
    return where, unseal_file(where, files.read(name) or b"", HandoverFacts, of_format=FORMAT, remedy=REMEDY)


def was_begun(files: Files, batch: Batch) -> bool:
    """Whether the hand-over in effect says that another sink has begun this batch; see :func:`newest_handover`."""
    found = newest_handover(files)
    return found is not None and found[1].began(batch)


def newest_number(files: Files) -> int:
    """Return the number of the hand-over in effect; 0 if no hand-over was recorded."""
    last = max((int(found[1]) for name in files.names("") if (found := _NAME.fullmatch(name))), default=0)
    while files.read(file_of(last + 1)) is not None:  # an object store's listing may omit a new file
        last += 1
    return last


def file_of(number: int) -> str:
    """Return the name of a hand-over's file."""
    return f"handover-{number:06d}.json"


def require_taken_over(files: Files, batch: Batch, decided: Callable[[], int | None]) -> int | None:
    """Check that no cut-over has handed over the batch, unless ``TakeOver`` passes on only the missing rows.

    Args:
        files: the directory ``<checkpoint>/twopc``.
        batch: a run's first batch, because a cut-over cannot hand over a later batch.
        decided: finds the last batch that this query has decided; None if it has decided none.

    Returns:
        the last batch that this run may write; None if there is no such limit.

    Raises:
        ConfigurationError: rows of the batch may be in the output, or the checkpoint was returned to the other sink.
    """
    found = newest_handover(files)
    if found is None:
        return None
    where, facts = found
    if facts.query_id != batch.query_id:
        return None  # TakeOver reports the problem
    if facts.is_back:
        # A rollback that could not fence this query may have come too early. This query may then have decided a later batch. Only
        # this query can finish such a batch. The old sink would write it once more.
        highest = decided() if batch.batch_id > facts.batch_id else None
        if highest is not None and batch.batch_id <= highest:
            return highest
        raise ConfigurationError(
            f"`twopc migrate rollback` has returned this checkpoint to the old sink ({where}), and the old sink may have "
            f"written rows of batch {batch.batch_id} since then. This run wrote nothing. To stay with the old sink, start "
            f"the old query as that command said. The old query writes the missing rows of batch {batch.batch_id}, even if "
            "this query has begun the batch. To write with this query, run `twopc migrate cutover --apply` again, and "
            "restart"
        )
    rest = _passing.get()
    if facts.began(batch) and (rest is None or rest.batch_id != batch.batch_id):
        raise ConfigurationError(
            f"another sink began to write batch {batch.batch_id}, and the cut-over left the batch half-written "
            f"({where}). Some of its rows may already be in the output. This run wrote nothing. To write only the "
            "missing rows, run the query in a classic session, with exactly_once(…, "
            "interceptors=[twopc.integration.migrate.TakeOver(sink)]). Spark Connect does not offer interceptors"
        )
    return None
