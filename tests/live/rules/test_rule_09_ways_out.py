"""Rule 9, the way out: a decided batch that nothing can complete is abandoned by its number, and its visible rows stay.

The schedule that breaks it: every start finds the same doubt and stops, including that of a new checkpoint, and the query never
runs again; or a setting left in the code abandons a batch that a restart would have completed.
"""

from __future__ import annotations

import re
from collections import Counter
from typing import TYPE_CHECKING

import pytest

from tests.live.pipeline import Tasks, opened
from tests.live.rules.batches import ROWS, VISIBLE
from tests.live.rules.schedules import Play, crash, playing
from tests.live.rules.test_rule_04_proof import delete_before_end, initialise_again
from tests.live.rules.test_rule_09_lost_transactions import decide_and_die
from tests.unit.ended_support import advised
from twopc import unproven
from twopc.batch import Batch
from twopc.coordinator import Coordinator
from twopc.errors import CommitBlockedError, InDoubtError
from twopc.files import LocalFiles
from twopc.override import Abandon, Overrides
from twopc.settings import Settings

if TYPE_CHECKING:
    from pathlib import Path

    from tests.live.services import KafkaService


def named_setting(error: object) -> Settings:
    """The override that an error names, exactly as it stands there."""
    ((batch, query_id),) = set(re.findall(r"restart with override=Abandon\((\d+), '(\S+)'\)", str(error)))
    return Settings(overrides=Overrides(abandoned={Abandon(int(batch), query_id)}))


def test_the_setting_in_the_error_abandons_a_lost_batch_that_was_left_behind(play: Play) -> None:
    """Rule 9. Caught mutations: the setting abandons any batch (``is_abandoned``), or its record is not read again."""
    decide_and_die(play, 1)
    for _ in range(2):
        with pytest.raises(InDoubtError, match=re.escape(unproven.LEFT_BEHIND)) as caught:
            play.driver().process(play.batch(1), Tasks(play, [["f"]]))
    setting = named_setting(caught.value)
    crash(play.driver(setting), play, 1, [["f"]], "driver.prepared")
    play.driver().process(
        play.batch(1), Tasks(play, [["f"]])
    )  # the ledger records that the batch is abandoned, so the setting is no longer needed
    play.driver(setting).process(play.batch(2), Tasks(play, [["g"]]))
    assert play.visible() == dict.fromkeys("abdefg", 1)
    assert play.open_transactions() == ()


def test_once_a_batch_is_abandoned_a_replay_with_different_rows_is_evaluated_but_not_written(play: Play) -> None:
    """Rule 9. Caught mutation: an abandoned batch is written again (a, b, d and e are duplicated)."""
    decide_and_die(play, 1)
    with pytest.raises(InDoubtError, match=re.escape(unproven.OTHER_ROWS)) as caught:
        play.driver().process(play.batch(0), Tasks(play, [["x"]]))
    driver, replay = play.driver(named_setting(caught.value)), Tasks(play, [["x"]])
    driver.process(play.batch(0), replay)
    assert (replay.prepared, replay.evaluated) == (0, 1)
    driver.process(play.batch(1), Tasks(play, [["f"]]))
    assert play.visible() == dict.fromkeys("abdef", 1)


def test_a_query_with_a_new_checkpoint_may_abandon_the_expired_batch_of_the_query_that_it_ends(
    play: Play, tmp_path: Path
) -> None:
    """Rule 9. The way out of a refused checkpoint, taken after the old decision's transactions have expired."""
    decide_and_die(play, 1)
    new = Batch("new", 0, ("offset-0",), lambda _: None)
    ending = Overrides(end_query_ids={play.query_id})

    def start(overrides: Overrides) -> None:
        opened.append(Coordinator([play.sink], LocalFiles(tmp_path / "new"), settings=Settings(overrides=overrides)))
        opened[-1].process(new, Tasks(play, [["n"]]))

    with pytest.raises(InDoubtError) as caught:
        start(ending)
    start(advised(caught.value).overrides)
    assert play.visible() == dict.fromkeys("abden", 1)


@pytest.mark.parametrize("batch", [0, 1], ids=["replayed", "left behind"])
def test_deleted_markers_block_a_batch_until_the_user_abandons_it(
    batch: int, kafka: KafkaService, tmp_path: Path
) -> None:
    """Rule 9. The batch is committed, but no marker shows it. Caught mutations: always BLOCKED; taken as proven."""
    with playing(kafka, tmp_path, timeout_ms=3_000) as play:
        crash(play.driver(), play, 0, ROWS, "driver.committed")
        partitions = sorted({handle.marker_partition for handle in play.decided(0)})
        initialise_again(play)
        delete_before_end(play, partitions)
        with pytest.raises(
            CommitBlockedError, match=r"markers were deleted.*restart with override=Abandon\(0, '\S+'\)\."
        ) as caught:
            play.driver().process(play.batch(batch), Tasks(play, [["d"]]))
        driver = play.driver(named_setting(caught.value))
        driver.process(play.batch(batch), Tasks(play, [["d"]]))
        driver.process(play.batch(batch + 1), Tasks(play, [["e"]]))
        assert play.visible() == VISIBLE + Counter("de" if batch else "e")
        assert play.plans() == ["write", "write", "write"][: 2 + batch]
