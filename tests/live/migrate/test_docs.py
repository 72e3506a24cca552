"""Every command and every piece of code of docs/migration.md runs, in the page's order, on one pipeline."""

from __future__ import annotations

import re
import shlex
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from typer.testing import CliRunner

from integration.cli import app
from tests.live.migrate.support import OldPipeline
from tests.live.migrate.test_cutover import write_half_of_batch_1

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from integration.services.old_kafka import LocalOldKafka
    from tests.live.services import KafkaService

pytestmark = [pytest.mark.timeout(900), pytest.mark.filterwarnings("ignore:unclosed:ResourceWarning")]

_PAGE = Path(__file__).parents[3] / "docs" / "migration.md"
_BLOCK = re.compile(r"^```(\w*)\n(.*?)^```", re.MULTILINE | re.DOTALL)
_NUMBERS = re.compile(r"\d+")


def test_the_page_runs_from_its_first_command_to_its_last(
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
            exec(compile(text, "migration.md", "exec", dont_inherit=True), scope)  # noqa: S102 - our own document
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
        elif not text.startswith("dry run: "):  # that one is in test_cutover.py
            assert [_NUMBERS.sub("", line) for line in text.splitlines()] == [
                _NUMBERS.sub("", line) for line in printed.splitlines()
            ]
    commands = ["migrate preflight", "migrate cutover", "migrate cutover", "python", "verify --bootstrap-servers"]
    assert ran == [*commands, "migrate rollback", "python"]
