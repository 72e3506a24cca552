"""``twopc report`` with a cluster: the open transactions, and the lag of readers."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from tests.live.operate.support import command, spark_files
from tests.live.pipeline import Tasks
from tests.live.rules.batches import ROWS
from tests.live.rules.schedules import crash
from tests.unit.history_support import ended, write

if TYPE_CHECKING:
    from pathlib import Path

    from tests.live.operate.support import Said
    from tests.live.rules.schedules import Play


def written(play: Play, page: Path, *words: str) -> tuple[Said, str]:
    """The command's output, and the text of the page's section about sinks."""
    checkpoint = write(play.root, [ended(0)])
    said = command("report", str(spark_files(play, finished=0)), "--out", str(page), *words)
    assert checkpoint == play.root
    return said, re.sub(r"<[^>]+>", " ", page.read_text().partition('id="sinks"')[2].partition("</section>")[0])


def test_the_page_shows_open_transactions_and_how_far_readers_lag(play: Play, tmp_path: Path) -> None:
    play.driver().process(play.batch(0), Tasks(play, ROWS))
    said, sinks = written(play, tmp_path / "page.html", "--bootstrap-servers", play.bootstrap_servers)
    assert said.status == 0
    assert re.search(r"\b0 open transactions\s+0 lag of the last stable offset", sinks)

    crash(play.driver(), play, 1, ROWS, "driver.decided")
    said, sinks = written(play, tmp_path / "page.html", "--bootstrap-servers", play.bootstrap_servers)
    assert said.status == 0
    handles = play.decided(1)
    assert f"{len(handles)} open transactions" in sinks and "act : batch 1 is decided" in sinks
    assert all(handle.transactional_id in sinks for handle in handles)
    lag = re.search(r"([\d,]+) lag of the last stable offset", sinks)
    assert lag and int(lag[1].replace(",", "")) >= len(handles)
    assert f"{play.topic}[" in sinks


def test_a_page_written_without_contact_to_the_cluster_gives_the_reason(play: Play, tmp_path: Path) -> None:
    play.driver().process(play.batch(0), Tasks(play, ROWS))
    said, sinks = written(play, tmp_path / "page.html")
    assert said.status == 0 and "The cluster was not contacted: add --bootstrap-servers." in sinks
    said, sinks = written(play, tmp_path / "page.html", "--bootstrap-servers", "127.0.0.1:1", "--timeout", "2")
    assert said.status == 1 and "no Kafka broker responds" in sinks
    assert said.error.count("\n") == 1 and "The page was written without the cluster's state" in said.error
