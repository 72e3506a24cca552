"""The row of ``TakeOver`` in the table of rights of docs/security.md: a half-written batch, handed over on a secured broker."""

from __future__ import annotations

import dataclasses
from collections import Counter
from typing import TYPE_CHECKING, Any

import pytest

from tests.live.broker_changes import create_acls
from tests.live.migrate.support import OldPipeline
from tests.live.migrate.test_cutover import write_half_of_batch_1
from tests.live.security_support import PASSWORD, USER, documented
from tests.live.spark_support import spark

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import SparkSession

    from twopc.integration.services.kafka import LocalKafka
    from twopc.sinks.kafka import KafkaSink

__all__ = ["spark"]
pytestmark = [
    pytest.mark.whole,
    pytest.mark.timeout(900),
    pytest.mark.filterwarnings("ignore:unclosed:ResourceWarning"),
]


class SecuredPipeline(OldPipeline):
    """The old sink uses the plain listener, the new one the secured one."""

    secured: dict[str, Any]

    def new_sink(self) -> KafkaSink:
        return dataclasses.replace(super().new_sink(), **self.secured)


def test_take_over_needs_to_read_the_output_and_reports_the_missing_right(
    secured: LocalKafka, secure_options: dict[str, Any], tmp_path: Path, spark: SparkSession
) -> None:
    pipeline = SecuredPipeline(secured.bootstrap_servers, tmp_path)
    user = {"kafka.sasl.username": USER, "kafka.sasl.password": PASSWORD}
    pipeline.secured = {"bootstrap_servers": secured.address("SECURE"), "options": {**secure_options, **user}}
    pipeline.feed(100)
    write_half_of_batch_1(pipeline, spark)
    before = pipeline.visible()
    pipeline.cut_over("--apply")
    rights = [right.named(pipeline.name, pipeline.topic) for right in documented()]
    (missing,) = [right for right in rights if right.role == "TakeOver"]
    others = [right for right in rights if right.role in {"tasks", "driver"} and not right.includes(missing)]
    create_acls(secured.bootstrap_servers, [right.binding(USER) for right in others])
    assert f"Allow Read on the topic {pipeline.topic}" in pipeline.fail_new(spark)
    assert pipeline.visible() == before
    create_acls(secured.bootstrap_servers, [missing.binding(USER)])
    pipeline.run_new(spark)
    assert pipeline.visible() == Counter(pipeline.given)
