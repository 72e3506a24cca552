"""Rule 1, in a query with several sinks: a driver acts on no sink before it has proof that no newer driver has acquired the log.

A driver acquires the deciding log first, then the sinks. Between the two, a newer driver may start, decide a batch and die.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.live.rules.schedules import Play, at, die, driver_of, fed
from twopc.errors import FencedError
from twopc.sinks.kafka.committer import KafkaCommitter
from twopc.testing.crash_points import InjectedFault

if TYPE_CHECKING:
    from twopc.attempt import Claim, Owner


def test_a_driver_overtaken_while_acquiring_its_sinks_ends_no_decided_transaction(
    pair: tuple[Play, Play], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Fails if a start does not check, after it has acquired every sink, that it still owns the deciding log.

    The overtaken driver would sweep the decided transactions of the second sink, and a replay with other rows stops in doubt.
    """
    first, second = pair
    sinks = [play.sink for play in pair]
    really = KafkaCommitter.acquire

    def overtaken(committer: KafkaCommitter, claim: Claim, seen: Owner | None = None) -> int:
        if committer.decision_log().name == second.sink.ledger:
            monkeypatch.setattr(KafkaCommitter, "acquire", really)
            newer = driver_of(first, sinks)
            with pytest.raises(InjectedFault), at("driver.decided", die):
                newer.process(first.batch(0), fed(pair, [["decided"]]))
        return really(committer, claim, seen)

    monkeypatch.setattr(KafkaCommitter, "acquire", overtaken)
    engine = fed(pair, [["overtaken"]])
    with pytest.raises(FencedError, match="fenced this driver while it was starting"):
        driver_of(first, sinks).process(first.batch(0), engine)
    assert (
        first.acquisitions()[-1].run != second.acquisitions()[-1].run
    )  # the overtaken driver was the last one to acquire one of the sinks
    replay = fed(pair, [["other rows"]])
    driver_of(first, sinks).process(first.batch(0), replay)
    assert (replay.prepared, replay.evaluated) == (0, 1)
    assert first.visible() == second.visible() == {"decided": 1}
    assert engine.prepared == 0
