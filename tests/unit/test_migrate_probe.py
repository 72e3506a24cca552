"""How long a probe waits for a group that commits its offsets from time to time. The clock is simulated."""

from __future__ import annotations

from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, Final, cast

import pytest

from twopc.integration.migrate import probe
from twopc.integration.preflight.findings import Result

if TYPE_CHECKING:
    from collections.abc import Callable, Collection

WANTED: Final = probe.Probe(group="billing", topic="orders", wait_s=120, hold_s=15)


class Cluster:
    """A partition, and a group that reads every record immediately and commits its position at certain times."""

    def __init__(
        self, monkeypatch: pytest.MonkeyPatch, commits_at: Callable[[float], bool], *, committed: bool
    ) -> None:
        self.now = 0.0
        self.is_committed_only = committed
        self.end = self.stable = self.offset = 0
        self._commits_at = commits_at
        monkeypatch.setattr(probe, "time", SimpleNamespace(monotonic=lambda: self.now, sleep=self.sleep))

    def sleep(self, seconds: float) -> None:
        before, self.now = self.now, self.now + seconds
        if self._commits_at(self.now) and not self._commits_at(before):
            self.offset = self.stable if self.is_committed_only else self.end

    # -- the writer

    def write(self, value: bytes, partitions: Collection[int]) -> dict[int, int]:
        del value
        self.end += 1
        return dict.fromkeys(partitions, self.end - 1)

    def commit(self) -> None:
        self.end = self.stable = self.end + 1  # the control record

    abort = commit


class Group(probe._Group):
    def __init__(self, cluster: Cluster) -> None:
        super().__init__(cast("Any", None), WANTED, "orders", 0)
        object.__setattr__(self, "cluster", cluster)

    def behind(self, marks: Any) -> dict[int, int]:
        offset = cast("Any", self).cluster.offset
        return {number: offset for number, mark in marks.items() if offset > mark}


@pytest.mark.parametrize("offset_s", [0.3, 1, 20, 39])
@pytest.mark.parametrize("reads", [Result.PASS, Result.FAIL], ids=["committed", "uncommitted"])
def test_the_transaction_stays_open_for_whole_commit_intervals_of_the_group(
    offset_s: float, reads: Result, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The group commits every 40 s, and its next commit comes at any time after the probe's first record."""
    cluster = Cluster(
        monkeypatch, lambda now: (now - offset_s) % 40 < 1 and now >= offset_s, committed=reads is Result.PASS
    )
    [finding] = probe._tried(WANTED, cast("Any", cluster), Group(cluster), [0])
    assert finding.result is reads


def test_a_group_that_commits_only_once_is_not_judged(monkeypatch: pytest.MonkeyPatch) -> None:
    cluster = Cluster(monkeypatch, lambda now: 1 <= now < 2, committed=False)
    [finding] = probe._tried(WANTED, cast("Any", cluster), Group(cluster), [0])
    assert finding.result is Result.WARN
