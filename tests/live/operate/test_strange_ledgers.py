"""Topics that are named like a ledger but are not ledgers: the check of a cluster continues with the others."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.live.operate.support import ask
from tests.live.pipeline import Tasks, create_topic
from tests.live.rules.batches import ROWS

if TYPE_CHECKING:
    from tests.live.rules.schedules import Play


@pytest.mark.whole
def test_a_copy_of_a_ledger_and_the_leftovers_of_a_preflight_do_not_hide_the_sinks(play: Play) -> None:
    play.driver().process(play.batch(0), Tasks(play, ROWS))
    strange = [f"twopc-ledger-{play.name}{end}" for end in (".backup", ".preflight-183e56fb8570", "." + "x" * 100)]
    for topic in strange:
        create_topic(play.bootstrap_servers, topic, 1)
    said = ask(play, "status", "--json")
    assert said.status in {0, 1}, said
    assert play.name in {one["sink"] for one in said.facts["sinks"]}
    assert set(strange) <= set(said.facts["not_ledgers"])
    assert f"{strange[0]} is not a ledger" in ask(play, "status").out
    assert f"{play.name}: 0 open" in ask(play, "transactions", "list").out
