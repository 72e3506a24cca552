"""Every command and every piece of code in docs/migration.md runs, in the page's order, on one pipeline."""

from __future__ import annotations

import re
import shlex
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from typer.testing import CliRunner

from tests.live.migrate.support import OldPipeline
from tests.live.migrate.test_cutover import write_half_of_batch_1
from twopc.integration.cli import app
from twopc.integration.migrate.rehearsal.ways import NOT_RUN, WAYS
from twopc.integration.services.kafka_upgrade import UPGRADE

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from tests.live.services import KafkaService
    from twopc.integration.services.old_kafka import LocalOldKafka

pytestmark = [pytest.mark.timeout(900), pytest.mark.filterwarnings("ignore:unclosed:ResourceWarning")]

_ROOT = Path(__file__).parents[3]
_PAGE = _ROOT / "docs" / "migration.md"
_REHEARSAL = _ROOT / "docs" / "migration-rehearsal.md"
_TERMS = _ROOT / "docs" / "migration-terms.md"
_BLOCK = re.compile(r"^```(\w*)\n(.*?)^```", re.MULTILINE | re.DOTALL)
#: One of our settings, methods or arguments, as a table names it.
_NAME = re.compile(r"`(?:CheckpointConfig\.)?([a-z]+(?:_[a-z]+)+|[A-Z][a-z]+(?:[A-Z][a-z]+)+)(?:\([^`]*\))?`")
_NUMBERS = re.compile(r"\d+")


@pytest.mark.whole
def test_all_commands_on_the_page_run_in_order(
    old_kafka: LocalOldKafka, kafka: KafkaService, tmp_path: Path, spark: SparkSession
) -> None:
    pipeline = OldPipeline(old_kafka.bootstrap_servers, tmp_path, servers=kafka.bootstrap_servers)
    pipeline.feed(60)
    write_half_of_batch_1(pipeline, spark)
    names = {
        "new:9092": pipeline.servers,
        "old:9092": pipeline.source_servers,
        "orders-enriched": pipeline.topic,
        "/checkpoints/orders": str(pipeline.checkpoint),
        "--sink orders": f"--sink {pipeline.name}",
        'name="orders"': f'name="{pipeline.name}"',
        "--source-topic orders": f"--source-topic {pipeline.source}",
        "5f3c0a52-…": pipeline.query_id,
    }
    ran, printed = [], ""
    for language, block in _BLOCK.findall(_PAGE.read_text()):
        text = block
        for placeholder, name in names.items():
            text = text.replace(placeholder, name)
        if language == "python":
            frame = pipeline.frame(spark, 40)
            scope = {"frame": frame, "old_function": pipeline.sink()}
            exec(compile(text, "migration.md", "exec", dont_inherit=True), scope)  # noqa: S102 - the code is in our own documentation
            scope["query"].awaitTermination()  # type: ignore[attr-defined]
            if "each" in scope:
                scope["each"].close()  # type: ignore[attr-defined]
            assert pipeline.visible() == Counter(pipeline.given)
            pipeline.feed(20)
            ran.append("python")
        elif text.startswith("twopc "):
            result = CliRunner().invoke(app, shlex.split(text)[1:])
            assert result.exit_code in {0, 3}, result.output
            printed = result.output
            ran.append(" ".join(block.split()[1:3]))
        elif language != "mermaid" and not text.startswith("dry run: "):  # that command is tested in test_cutover.py
            assert [_NUMBERS.sub("", line) for line in text.splitlines()] == [
                _NUMBERS.sub("", line) for line in printed.splitlines()
            ]
    commands = ["migrate preflight", "migrate cutover", "migrate cutover", "python", "verify --bootstrap-servers"]
    assert ran == [*commands, "migrate rollback", "python"]


def test_the_rehearsal_page_lists_the_options_and_the_migration_ways_of_the_command() -> None:
    """The rehearsal itself is run, and its steps are compared with the page, in test_rehearsal.py."""
    text = _REHEARSAL.read_text()
    result = CliRunner().invoke(app, ["migrate", "rehearse", "--help"], terminal_width=200)
    rows = [line for line in text.splitlines() if line.startswith("| `--")]
    named = {option for row in rows for option in re.findall(r"`(--[a-z-]+)", row)}
    assert named == {"--way", "--kills", "--batch-rows", "--seed", "--json"}
    assert all(option in result.output for option in named)
    assert set(re.findall(r"`--way ([a-z-]+)`", text)) == set(WAYS)
    assert all(what in text for what in NOT_RUN)
    assert all(step.version in text for step in UPGRADE)
    assert re.search(
        r"^rehearse-migration:.*\n\t@\$\(BIN\)/twopc migrate rehearse", (_ROOT / "Makefile").read_text(), re.MULTILINE
    )


def test_every_name_of_this_project_in_the_tables_of_terms_exists() -> None:
    ours = {name for line in _TERMS.read_text().splitlines() for name in _NAME.findall(line.split(" | ", 1)[-1])}
    assert {"timeout_ms", "recover_and_abort", "EndQuery"} <= ours
    sources = "".join(
        path.read_text() for room in ("twopc", "sinks", "integration") for path in (_ROOT / room).rglob("*.py")
    )
    assert sorted(name for name in ours if not re.search(rf"\b{name}\b", sources)) == []
