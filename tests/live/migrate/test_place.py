"""Where a checkpoint may be, and what `take_over` refuses."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

import pytest
from typer.testing import CliRunner

from tests.live.migrate.support import OldPipeline
from tests.live.migrate.test_cutover import write_half_of_batch_1
from twopc.errors import ConfigurationError
from twopc.integration.cli import app
from twopc.integration.migrate import TakeOver
from twopc.integration.spark import InterceptedBatch, exactly_once
from twopc.sinks.kafka import KafkaSink

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import SparkSession

    from tests.live.services import KafkaService
    from twopc.integration.services.old_kafka import LocalOldKafka

pytestmark = [pytest.mark.timeout(900), pytest.mark.filterwarnings("ignore:unclosed:ResourceWarning")]


def test_a_missing_directory_is_reported() -> None:
    words = ["--bootstrap-servers", "127.0.0.1:1", "--sink", "s", "--checkpoint", "/no/such/place"]
    result = CliRunner().invoke(app, ["migrate", "rollback", *words])
    assert result.exit_code == 2
    assert "/no/such/place is not a directory" in result.output


def test_a_file_system_that_does_not_respond_is_reported_without_a_traceback(spark: SparkSession) -> None:
    assert spark.version  # if there were no session, the command would start one
    words = [
        "--bootstrap-servers",
        "127.0.0.1:1",
        "--sink",
        "s",
        "--checkpoint",
        "hdfs://no.such.host.invalid:1/checkpoint",
    ]
    result = CliRunner().invoke(app, ["migrate", "rollback", *words])
    assert result.exit_code == 2
    assert "no.such.host.invalid" in result.output
    assert "Traceback" not in result.output


@pytest.mark.whole
def test_a_checkpoint_with_a_url_is_handed_over_and_back(
    old_kafka: LocalOldKafka, kafka: KafkaService, tmp_path: Path, spark: SparkSession
) -> None:
    pipeline = OldPipeline(old_kafka.bootstrap_servers, tmp_path, servers=kafka.bootstrap_servers)
    pipeline.feed(60)
    write_half_of_batch_1(pipeline, spark)
    pipeline.location = pipeline.checkpoint.as_uri() + "/"
    assert pipeline.location.startswith("file://")
    pipeline.cut_over("--apply")
    pipeline.fail_new_at(spark, "driver.decided")
    assert pipeline.command("rollback")["handover"]["kind"] == "whole"
    pipeline.run_old(spark)
    assert pipeline.visible() == Counter(pipeline.given)


def kafka_sink(name: str) -> KafkaSink:
    return KafkaSink(name=name, bootstrap_servers="127.0.0.1:1", topic="t")


@pytest.mark.parametrize("names", [("a", "b"), ("b",)])
def test_a_take_over_with_other_sinks_is_refused_because_they_would_miss_rows(names: tuple[str, ...]) -> None:
    with pytest.raises(
        ConfigurationError, match="rows that are already in the output of 'a', so the other sinks would miss these rows"
    ):
        exactly_once(*map(kafka_sink, names), interceptors=[TakeOver(kafka_sink("a"))])


def test_several_dataframes_are_refused_before_anything_is_read() -> None:
    batch = InterceptedBatch({"a": None}, 7, "/checkpoint")
    with pytest.raises(ConfigurationError, match="several DataFrames"):
        TakeOver(kafka_sink("a")).intercept(batch, lambda _: None)
