"""The tests that `make matrix` runs on every Spark version: a file source, which needs no connector."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pyspark
import pytest

from tests.live.spark_support import KILLED, Pipeline

if TYPE_CHECKING:
    from pathlib import Path

    from tests.live.services import KafkaService

#: The crash points at which one driver after the other is killed. The last driver runs to its end.
EVERY_POINT = "driver.confirmed", "driver.decided", "driver.committing", "driver.committed", ""
A_SAMPLE = "driver.committing", ""
_VERSION_2 = {"spark.sql.streaming.offsetLog.formatVersion": "2"}
_knows_version_2 = pytest.mark.skipif(
    pyspark.__version__ < "4.3",
    reason="the offset log's version 2 came with Spark 4.2, whose 4.2.0 cannot restart with an unfinished batch "
    "(None.get in OfflineStateRepartitionUtils, without this toolkit, too)",
)


@pytest.mark.timeout(600)
@pytest.mark.parametrize(
    ("plan", "points"),
    [
        pytest.param("rows", A_SAMPLE, marks=pytest.mark.whole),
        pytest.param("rows", EVERY_POINT, marks=pytest.mark.whole),
        pytest.param("shuffle", EVERY_POINT, marks=pytest.mark.whole),
    ],
)
@pytest.mark.parametrize(
    "settings", [pytest.param({}, id="v1"), pytest.param(_VERSION_2, marks=_knows_version_2, id="v2")]
)
def test_a_query_over_files_writes_rows_exactly_once_although_its_driver_is_killed(
    plan: str, points: tuple[str, ...], settings: dict[str, str], kafka: KafkaService, tmp_path: Path
) -> None:
    files = tmp_path / "files"
    files.mkdir()
    pipeline = Pipeline(kafka.bootstrap_servers, tmp_path, plan=plan, files=str(files), spark=settings)
    try:
        for number, point in enumerate(points):
            rows = [{"key": f"k{n % 5}", "value": f"k{n % 5}-{number}-{n}"} for n in range(40)]
            pipeline.given.update(row["value"] for row in rows)
            temporary = tmp_path / f"{number}.json"
            temporary.write_text("".join(json.dumps(row) + "\n" for row in rows))
            temporary.rename(files / temporary.name)
            run = pipeline.process(f"{point}=kill" if point else "")
            assert run.ended() == (KILLED if point else 0), run.text[-3000:]
    finally:
        pipeline.close()
    pipeline.require_exactly_once()
    [offsets] = {path.read_text().splitlines()[0] for path in (tmp_path / "checkpoint/offsets").glob("[0-9]*")}
    assert offsets == ("v2" if settings else "v1")
