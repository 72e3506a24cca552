"""The decision log cannot move (rule 11): a file beside the checkpoint says which log and sinks it belongs to.

Without it, a renamed sink, another cluster or a recreated ledger would look like an empty log, and a decided batch would
be written twice.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import msgspec

from twopc.crash_points import crash_point
from twopc.errors import DecisionLogDamagedError, RefusedStartError

if TYPE_CHECKING:
    from twopc.files import Files

FORMAT: Final = 1
_PREFIX: Final = "binding-"


class Bound(msgspec.Struct, frozen=True, kw_only=True):
    """What a checkpoint is bound to.

    Attributes:
        log: the name of the deciding log.
        log_identity: an id that changes when the log is recreated.
        sinks: by name, what must not change about each.
    """

    format: int
    log: str
    log_identity: str
    sinks: dict[str, dict[str, str]]


class Binding:
    """The write-once file ``binding-<n>.json``; a higher n is a recorded override."""

    def __init__(self, files: Files) -> None:
        self._files = files
        self._number, self._bound = self._load()

    @property
    def log(self) -> str | None:
        """The name of the deciding log, once bound."""
        return None if self._bound is None else self._bound.log

    def check(self, current: Bound, *, add_sink: str | None) -> None:
        """Compare with what the query has now. Reads the file again; writes nothing.

        Raises:
            RefusedStartError: they differ, and no override covers it.
        """
        self._number, self._bound = self._load()
        bound = self._bound
        if bound is None:
            return
        added = sorted(set(current.sinks) - set(bound.sinks) - {add_sink})
        gone = sorted(set(bound.sinks) - set(current.sinks))
        if gone:
            raise self._refused(
                f"the checkpoint belongs to the sinks {sorted(bound.sinks)}, but the query has {sorted(current.sinks)}",
                f"Pass {', '.join(gone)} again, under the same name, or start with a new checkpoint",
            )
        if added:
            raise self._refused(
                f"the query has the new sink {', '.join(added)}",
                f"Pass add_sink={added[0]!r} to add it from the next batch on, one sink at a time",
            )
        for name, facts in bound.sinks.items():
            if facts != current.sinks[name]:
                raise self._refused(
                    f"sink {name!r} was {facts} and is now {current.sinks[name]}",
                    "Point it back to where it was, or start with a new checkpoint",
                )
        if (bound.log, bound.log_identity) != (current.log, current.log_identity):
            raise self._refused(
                f"the decisions were in {bound.log} ({bound.log_identity}), but {current.log} is a different log now "
                f"({current.log_identity}): it was deleted and recreated. The last batch may be incomplete, and nothing shows "
                "it any more",
                "Check the output, then start with a new checkpoint and a new sink name",
            )

    def bind(self, current: Bound) -> None:
        """Write the file. Called with the first decision and not before: a refused start leaves no trace.

        Raises:
            RefusedStartError: another driver has bound the checkpoint to other sinks in the meantime.
        """
        if self._bound == current:
            return
        name = f"{_PREFIX}{self._number + 1:06d}.json"
        if not self._files.put_if_absent(name, msgspec.json.encode(current)):
            self._number, self._bound = self._load()
            if self._bound != current:
                raise self._refused("another driver has just bound it to other sinks", "Stop one of the two")
            return
        self._number, self._bound = self._number + 1, current
        crash_point("driver.bound")

    def _load(self) -> tuple[int, Bound | None]:
        names = [name for name in self._files.names("") if name.startswith(_PREFIX)]
        if not names:
            return 0, None
        newest = max(names)
        try:
            bound = msgspec.json.decode(self._files.read(newest) or b"", type=Bound)
            number = int(newest.removeprefix(_PREFIX).removesuffix(".json"))
        except (msgspec.DecodeError, ValueError) as error:
            raise DecisionLogDamagedError(
                f"{self._files.location}/{newest} cannot be read ({error}). Nothing was written. Restore it from a backup of the "
                "checkpoint"
            ) from error
        if bound.format != FORMAT:
            raise self._refused(
                f"{newest} has format {bound.format}, this version reads {FORMAT}", "Use the version that wrote it"
            )
        return number, bound

    def _refused(self, what: str, fix: str) -> RefusedStartError:
        return RefusedStartError(f"{self._files.location}: {what}. Nothing was written. {fix}", case="binding")
