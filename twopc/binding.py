"""Record a checkpoint's decision log and sinks in a file next to the checkpoint, to detect a change (rule 11).

Without this file, a renamed sink, a different cluster or a recreated ledger would look like an empty log, and a decided batch
would be written twice.

On a file system with an atomic put-if-absent, the file decides between two drivers. An object store does not offer that
operation, so the log's fence decides. However, a fenced driver may still write a file at any time. Each driver therefore uses
its own file name, every decision records the number of its binding, and the last decision's binding counts. A store may list
files late, so before its first decision, a driver also stores the binding under a fixed name that every reader checks. The fixed
name is only a hint: if it names another log than a decision, the decision counts, and the next driver corrects the fixed name.
"""

from __future__ import annotations

import re
import zlib
from typing import TYPE_CHECKING, Final

import msgspec

from twopc.bound import FORMAT, Bound, changed_facts, is_same, is_same_log, with_known_ids
from twopc.crash_points import crash_point
from twopc.errors import DecisionLogDamagedError, RefusedStartError, RetriableError, TwoPhaseCommitError
from twopc.log_reader import view_of
from twopc.new_checkpoint import FAILOVER, NEW_NAME
from twopc.override import AddSink
from twopc.sealed import OtherFormatError, seal, unseal

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

    from twopc.decision_log import DecisionLog
    from twopc.files import Files
    from twopc.override import Overrides

#: On an object store, this is the fixed name. Only if the checkpoint was copied from a file system do decisions name this number.
_FIRST: Final = 1
#: On an object store, the last digits of a number stand for the log. Drivers of two new logs often have the same epoch.
_LOGS: Final = 1_000_000
_NAME: Final = re.compile(r"binding-(\d+)\.json")


class Binding:
    """The write-once file ``binding-<n>.json``. An override writes a new file with a higher n.

    Attributes:
        number: the number of the binding in effect; 0 if there is no binding.
    """

    def __init__(self, files: Files) -> None:
        self._files = files
        self.number = self._newest = 0
        self._bound: Bound | None = None
        self._is_decided = False  # whether a decision names the binding
        self._is_stored = False  # whether this run has nothing left to write for the binding
        self._load(0)

    @property
    def is_listed_at_once(self) -> bool:
        """Whether the newest binding can be identified without the last decision."""
        return self._files.is_atomic

    @property
    def log(self) -> str | None:
        """The name of the deciding log; None until the checkpoint is bound."""
        return None if self._bound is None else self._bound.log

    @property
    def log_identity(self) -> str | None:
        """The id of the deciding log; None until the checkpoint is bound."""
        return None if self._bound is None else self._bound.log_identity

    @property
    def sinks(self) -> dict[str, dict[str, str]]:
        """For each sink name, the facts that must not change; empty until the checkpoint is bound."""
        return {} if self._bound is None else self._bound.sinks

    def deciding(
        self, logs_of_sinks: Sequence[DecisionLog], own_log: DecisionLog, ended: Collection[str]
    ) -> DecisionLog:
        """Return the log to which the checkpoint is bound.

        If the checkpoint is not bound yet, return the log that is open for one of the ``ended`` queries, which this start ends.
        That log then also records the query's end. If there is no such log, return the first log. This choice may be based on a
        stale read, so a start completes the last decision in every other log, too.

        On an object store, a log whose last decision names a binding to that log takes precedence.

        If the bound log is not among these logs, return the first log with the same name. If no log has that name, return the
        first log. In both cases, :meth:`check` then refuses the start.

        Raises:
            TwoPhaseCommitError: a log that must be read for this choice does not respond, or is damaged.
        """
        logs = [*logs_of_sinks, own_log]
        named = [log for log in logs if log.name == self.log]
        if not self._files.is_atomic and len(logs_of_sinks) > 1:
            # A driver that uses another of these logs may have overwritten the fixed name, and died.
            decided = next((log for log in (*named, *logs_of_sinks) if self._has_decided(log)), None)
            if decided is not None:
                return decided
        if self._bound is None and ended:
            return next((log for log in logs_of_sinks if _open_query(log) in ended), logs[0])
        if len(named) > 1:  # ledgers on two clusters may have the same name. The sort is stable, and False comes first
            named.sort(key=lambda log: log.identity() != self.log_identity)
        return (named or logs)[0]

    def check(self, current: Bound, overrides: Overrides, *, decided: int = 0) -> None:
        """Compare the binding with the query's current log and sinks. Reads the file again; writes nothing.

        Args:
            current: the query's current log and sinks.
            overrides: the user's overrides, which may permit additional sinks in the binding.
            decided: the binding number in the query's last decision. If this number is 0, the newest file counts.

        Raises:
            RefusedStartError: the binding differs, and no override permits the difference.
        """
        self._load(decided)
        bound = self._bound
        if bound is None:
            return
        added = sorted(set(current.sinks) - set(bound.sinks) - overrides.added_sinks)
        gone = sorted(set(bound.sinks) - set(current.sinks))
        if gone:
            raise self._refused(
                f"the checkpoint is bound to the sinks {sorted(bound.sinks)}, but the query writes to "
                f"{sorted(current.sinks)}",
                f"Pass each missing sink ({', '.join(gone)}) again under the same name. To remove a sink, first let the query "
                "complete its last batch in all sinks: docs/several-sinks.md#adding-and-removing-a-sink",
            )
        if added:
            raise self._refused(
                f"the query also writes to {added}, but the checkpoint is bound only to the sinks {sorted(bound.sinks)}",
                f"To add {'them' if len(added) > 1 else 'it'} with the next batch, pass "
                f"{overrides.in_code(*map(AddSink, added))}",
            )
        for name, facts in bound.sinks.items():
            if changed_facts(facts, current.sinks[name]):
                raise self._refused(
                    f"sink {name!r} was bound to {facts}, but now points to {current.sinks[name]}",
                    "Point the sink back at its original store. If that store is lost or was copied elsewhere, "
                    f"{FAILOVER}",
                )
        if not is_same_log(bound, current):
            raise self._refused(
                f"the decisions were stored in {bound.log} ({bound.log_identity}). This log was deleted and recreated, so "
                f"{current.log} is now a different log ({current.log_identity}). Without the old log, it is "
                "impossible to tell whether the last batch is complete",
                f"Check the last batch's rows in the output, then {NEW_NAME}",
            )

    def bind(self, current: Bound, log_epoch: int) -> None:
        """Write the binding file.

        This happens no earlier than the first decision, so that a refused start leaves no trace.

        Args:
            current: the query's current log and sinks.
            log_epoch: this driver's epoch in the deciding log, which the driver has acquired.

        Raises:
            RefusedStartError: another driver has bound the checkpoint to other sinks in the meantime.
            RetriableError: the file could not be written.
        """
        if self._bound is not None:
            current = with_known_ids(current, self._bound)
        if self._bound == current and self._is_stored:
            return
        number, is_new = self.number, self._bound != current or not self._is_decided
        if is_new:
            number = self._newest + 1 if self._files.is_atomic else _unique_number(current, log_epoch)
            if not self._put(number, seal(current)) and self._read(number) != current:
                raise self._overtaken()
        if not self._files.is_atomic and (rival := self._store_first(current)) is not None:
            self._files.remove(_name(number))
            if self._read(_FIRST) == current:
                # Without its binding under the fixed name, the other query's checkpoint may look new to a start with another log.
                # If this driver dies first, the other query's next driver corrects the fixed name.
                self._put(_FIRST, seal(rival), replaces=True)
            raise self._overtaken()
        self.number, self._bound, self._is_stored = number, current, True
        if is_new:
            crash_point("driver.bound")

    def _store_first(self, current: Bound) -> Bound | None:
        """Store the binding under the fixed name of an object store. Return a binding to another log, which refuses this one.

        This driver cannot fence a driver that uses another log. If both drivers first write their own files and then read, at
        least one of them sees the other's file, unless the store lists new files late. Only a driver that sees no such file
        writes the fixed name. From then on, the fixed name counts, and the files of drivers that died do not.
        """
        first = self._read(_FIRST)
        if first is not None and is_same_log(first, current):
            return None
        if self._is_decided:  # a driver that paused in its put has overwritten the fixed name
            self._put(_FIRST, seal(current), replaces=True)
            return None
        rival = first or self._rival(current)
        if rival is None:
            self._put(_FIRST, seal(current))
            # Again, because a store may list late, and this driver may have paused in its put.
            rival = self._rival(current)
        return rival

    def _rival(self, current: Bound) -> Bound | None:
        found = [self._read(number) for number in {_FIRST, *self._listed()}]
        return next((one for one in found if one is not None and not is_same_log(one, current)), None)

    def _has_decided(self, log: DecisionLog) -> bool:
        """Whether the log's last decision names a binding to this log."""
        last = view_of(log, log.inspect).decision
        bound = None if last is None else self._read(last.binding)
        return bound is not None and bound.log == log.name and is_same(bound.log_identity, log.identity())

    def _put(self, number: int, data: bytes, *, replaces: bool = False) -> bool:
        try:
            if replaces:
                self._files.remove(_name(number))
            return self._files.put_if_absent(_name(number), data)
        except TwoPhaseCommitError:
            raise
        except Exception as error:  # any file system error; if the file was written anyway, the next try finds it
            raise RetriableError(
                f"{self._files.location}/{_name(number)}, which records the checkpoint's log and sinks, could not be "
                f"written: {error}. No part of this attempt is visible or decided. Restart the query when the file "
                "system accepts writes again"
            ) from error

    def _listed(self) -> set[int]:
        return {int(found[1]) for name in self._files.names("") if (found := _NAME.fullmatch(name))}

    def _load(self, decided: int) -> None:
        """Load the last decision's binding. If its file is missing, load the newest binding to the fixed name's log."""
        listed = self._listed()
        self._newest, self._is_stored = max(listed, default=0), self._files.is_atomic
        self.number, self._bound = decided, self._read(decided) if decided else None
        self._is_decided = self._bound is not None
        if self._bound is None:
            self.number, self._bound = self._newest_binding(listed)

    def _newest_binding(self, listed: set[int]) -> tuple[int, Bound | None]:
        first = self._read(_FIRST)
        for number in sorted(listed - {_FIRST}, reverse=True):
            found = self._read(number)
            if found is not None and (first is None or is_same_log(found, first)):
                return number, found
        return (0 if first is None else _FIRST), first

    def _read(self, number: int) -> Bound | None:
        name = _name(number)
        data = self._files.read(name)
        if data is None:
            return None
        try:
            return unseal(data, Bound, of_format=FORMAT)
        except OtherFormatError as error:
            raise self._refused(f"{name}: {error}", "No data is lost") from error
        except msgspec.DecodeError as error:
            raise DecisionLogDamagedError(
                f"{self._files.location}/{name} cannot be read ({error}). Nothing was written. Restore the file from a "
                "backup of the checkpoint"
            ) from error

    def _overtaken(self) -> RefusedStartError:
        return self._refused(
            "another driver has just bound this checkpoint to other sinks", "Stop one of the two queries"
        )

    def _refused(self, what: str, fix: str) -> RefusedStartError:
        return RefusedStartError(f"{self._files.location}: {what}. Nothing was written. {fix}", case="binding")


def _open_query(log: DecisionLog) -> str | None:
    begin = view_of(log, log.inspect).begin
    return None if begin is None else begin.query_id


def _unique_number(current: Bound, log_epoch: int) -> int:
    """Return a number that no driver of another log uses, above all numbers of earlier drivers, whose epochs are lower."""
    return (log_epoch + 1 + _FIRST) * _LOGS + zlib.crc32(f"{current.log} {current.log_identity}".encode()) % _LOGS


def _name(number: int) -> str:
    return f"binding-{number:06d}.json"
