"""The advice to start with a new checkpoint says where it must begin, wherever the toolkit gives it."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

from tests.unit.fake_sink import batch_of
from twopc.log_view import LogView
from twopc.new_checkpoint import NEW_NAME, begun, last_decided, new_checkpoint
from twopc.records import Begin

_ROOT = Path(__file__).parents[2]
BATCH = batch_of(0)


def closed_at(batch: int, offsets: str) -> LogView:
    return LogView(begin=Begin(query_id="q", first_batch=batch + 1, prior_offsets=(offsets,)))


def test_only_one_module_words_the_advice() -> None:
    """Fails if another message leaves out where the new checkpoint begins."""
    for folder in ("twopc", "sinks", "integration"):
        for path in sorted((_ROOT / folder).rglob("*.py")):
            text = re.sub(r'"\s*f?"', "", path.read_text(encoding="utf-8"))
            if path.name != "new_checkpoint.py":
                assert not re.search(r"(start with|or use|, use) a new checkpoint", text), path


def test_the_page_that_the_advice_names_exists() -> None:
    assert "#new-checkpoint" in NEW_NAME
    assert "\n### New checkpoint\n" in (_ROOT / "docs/operations.md").read_text(encoding="utf-8")


def test_the_offsets_of_another_query_are_not_shown() -> None:
    view = closed_at(3, "here")
    assert last_decided("q", view, "log") == "query q's last decided batch (batch 3: here), which that start completes"
    assert last_decided("p", view, "log") == "query p's last decided batch, whose rows must all be visible first"


def test_the_offsets_of_a_source_with_many_partitions_do_not_fill_the_message() -> None:
    assert "(batch 3" not in begun(BATCH, "q", closed_at(3, "x" * 501))
    assert "(batch 3" in begun(BATCH, "q", closed_at(3, "x" * 500))


def test_a_batch_that_is_not_the_first_of_its_checkpoint_begins_where_the_checkpoint_says() -> None:
    assert begun(replace(BATCH, batch_id=1), "q", None) == ""
    assert "state is lost" in begun(BATCH, "q", None)
    assert "state is lost" not in begun(replace(BATCH, keeps_state=lambda: False), "q", None)
    assert "state is lost" in new_checkpoint(BATCH, "q", "that batch")
