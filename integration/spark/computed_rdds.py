"""Remember which stages computed each RDD, for as long as :func:`~twopc.integration.spark.mixed_rows.judge` may need them.

A cached table may outlive a million batches, and each batch has a stage that reads the table. So this memory forgets the stages
that cannot change the judgment.
"""

from __future__ import annotations

from collections import OrderedDict, defaultdict
from typing import TYPE_CHECKING, Final

from msgspec import structs

from twopc.errors import FatalError
from twopc.integration.spark.mixed_rows import start_of
from twopc.integration.spark.number_ranges import NumberRanges

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from twopc.integration.spark.reports import StageAttempt

    Attempts = dict[tuple[int, int], StageAttempt]  # by stage and attempt

#: The maximum number of remembered RDDs (the most recently used).
_MAX_RDDS: Final = 100_000
#: The maximum number of ranges of dropped RDDs. Older RDDs count as dropped even if no known stage has computed them.
_MAX_RANGES: Final = 100_000
#: If several stages did the same for an RDD, :func:`_forget_between` keeps this many of them.
_ENDS: Final = 2


class ComputedRdds:
    """The stages that computed each RDD. The owner's lock guards this object."""

    def __init__(self) -> None:
        self._attempts: OrderedDict[int, Attempts] = OrderedDict()  # by RDD
        # By RDD, the shuffles of the jobs whose stages computed the RDD.
        self._read: dict[int, set[tuple[int, ...]]] = {}
        self._dropped = NumberRanges()

    def record(self, stages: Mapping[int, Sequence[StageAttempt]]) -> None:
        """Remember which stages of a job have run.

        Args:
            stages: all attempts at each stage of the job.
        """
        written = {attempts[-1].rdd_ids for attempts in stages.values() if attempts and attempts[-1].is_written}
        for attempts in stages.values():
            ran = [one for one in attempts if one.has_run]
            for one in ran:
                self._record(one, written)
            for rdd in {rdd for one in ran for rdd in one.rdd_ids}.intersection(self._attempts):
                _forget_between(self._attempts[rdd], rdd)  # all attempts at the stage must be known first
        while len(self._attempts) > _MAX_RDDS:
            rdd, _ = self._attempts.popitem(last=False)
            self._read.pop(rdd, None)
            self._dropped.add(rdd)
        self._dropped.fill_oldest_gaps(_MAX_RANGES)

    def _record(self, one: StageAttempt, written: Iterable[tuple[int, ...]]) -> None:
        for rdd in one.rdd_ids:
            if rdd not in self._attempts and rdd in self._dropped:
                continue  # a later stage that reads the RDD does not show which stages computed it
            self._attempts.setdefault(rdd, {})[one.stage_id, one.attempt_id] = one
            if one.shuffle_read_records:
                # An RDD's own input is older than the RDD. A newer shuffle belongs to a batch that reads a cache.
                self._read.setdefault(rdd, set()).update(shuffle for shuffle in written if shuffle[0] < rdd)

    def have_run(self, rdds: Iterable[int]) -> bool:
        """Whether a recorded stage has computed any of the RDDs."""
        return any(rdd in self._attempts for rdd in rdds)

    def have_written(self, rdd: int, *, until: int) -> bool:
        """Whether a recorded stage, with the number ``until`` or lower, has written the shuffle of the RDD's rows."""
        known = self._attempts.get(rdd, {}).values()
        return any(one.rdd_ids[0] == rdd and one.stage_id <= until for one in known)

    def of(self, rdds: Iterable[int], own: Mapping[int, Sequence[StageAttempt]]) -> list[StageAttempt]:
        """Return the stage attempts that computed any of the RDDs and may change the judgment, in stage order.

        The result shows only the part of each attempt that concerns these RDDs; see :func:`_up_to`.

        Args:
            rdds: the RDDs from which a batch's rows were computed.
            own: all attempts at each stage of the batch's jobs. They count even if they are forgotten.
        """
        found: Attempts = {}
        for rdd in sorted(rdds):  # an attempt's newest RDD comes last, because it shows the most of the attempt
            if rdd in self._attempts:
                self._attempts.move_to_end(rdd)
                found |= {key: _up_to(rdd, one) for key, one in self._attempts[rdd].items()}
        found |= {(one.stage_id, one.attempt_id): one for attempts in own.values() for one in attempts if one.has_run}
        return [found[key] for key in sorted(found)]

    def sources_of(self, rdds: Iterable[int]) -> set[int]:
        """Return the RDDs from which recorded stages computed these RDDs, without crossing a shuffle."""
        return {
            older
            for rdd in rdds
            for one in self._attempts.get(rdd, {}).values()
            for older in one.rdd_ids
            if older < rdd
        }

    def behind(self, rdds: Iterable[int]) -> set[tuple[int, ...]]:
        """Return the shuffles that may have been read to compute the RDDs. Each shuffle is represented by the RDDs of its stage.

        ``localCheckpoint()`` cuts an RDD's lineage, so the batch's own jobs do not show these shuffles.

        Raises:
            FatalError: this memory has dropped one of the RDDs.
        """
        found = {shuffle for rdd in rdds for shuffle in self._read.get(rdd, ())}
        self.require_known(rdd for shuffle in found for rdd in shuffle)
        return found

    def are_known(self, rdds: Iterable[int]) -> bool:
        """Whether this memory has dropped none of the RDDs."""
        return all(rdd in self._attempts or rdd not in self._dropped for rdd in rdds)

    def require_known(self, rdds: Iterable[int]) -> None:
        """Check that this memory has dropped none of the RDDs.

        Raises:
            FatalError: the stages of one of the RDDs are no longer known.
        """
        for rdd in rdds:
            if not self.are_known([rdd]):
                raise _dropped(rdd)


def _up_to(rdd: int, one: StageAttempt) -> StageAttempt:
    """Return what an attempt did for an RDD, which it computed from older RDDs.

    The attempt's shuffle, if any, contains rows of the attempt's own RDD.
    """
    if rdd >= one.rdd_ids[0]:
        return one
    older = tuple(sorted(older for older in one.rdd_ids if older <= rdd))
    return structs.replace(one, rdd_ids=older, shuffle_write_records=0, writes=False)


def _forget_between(known: Attempts, rdd: int) -> None:
    """If several stages did the same for an RDD, forget those that change no judgment.

    If a shuffle was written again, the judgment depends on two questions. Was one of these stages running at that time? Did
    some of them begin before that time, and others after it? The stage that began first and the stage that ended last give the
    same answers as all of the stages. A stage that was rerun, has not ended, or wrote a shuffle of the RDD's rows is never
    forgotten. The stage with the lowest number may have written such a shuffle without rows.
    """
    if len(known) <= _ENDS:
        return
    rerun = {stage for stage, attempt in known if attempt}
    alike: defaultdict[object, list[StageAttempt]] = defaultdict(list)
    for one in known.values():
        done = _up_to(rdd, one)
        if one.completion_time is not None and one.stage_id not in rerun and not done.is_written:
            alike[frozenset(done.rdd_ids), one.shuffle_read_records > 0, done.writes].append(one)
    for group in alike.values():
        ends = (min(group, key=start_of), max(group, key=_ended), min(group, key=_number))
        for one in group:
            if one not in ends:
                del known[one.stage_id, one.attempt_id]


def _ended(attempt: StageAttempt) -> int:
    return attempt.completion_time or 0


def _number(attempt: StageAttempt) -> int:
    return attempt.stage_id


def _dropped(rdd: int) -> FatalError:
    return FatalError(
        f"This batch reads RDD {rdd} from a cache or from shuffle files, but the toolkit no longer knows which stages "
        f"computed this RDD. The toolkit remembers only the {_MAX_RDDS} most recently used RDDs. So the toolkit cannot "
        "check whether a stage ran twice and mixed the rows of two shuffles. No part of this attempt is decided or visible. "
        "Unpersist the cached table, cache it again, and restart the query"
    )
