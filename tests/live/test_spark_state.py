"""A stateful query with RocksDB and changelog checkpoints, Spark's counterpart of Flink's incremental checkpoints."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.live.spark_support import KILLED, Pipeline
from twopc.integration.history.reader import read

if TYPE_CHECKING:
    from tests.live.services import KafkaService

_STORE = "spark.sql.streaming.stateStore"
_ROCKS_DB = {
    f"{_STORE}.providerClass": "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider",
    f"{_STORE}.rocksdb.changelogCheckpointing.enabled": "true",
}
_KEYS = 10


@pytest.mark.whole
@pytest.mark.parametrize("point", ["task.prepared@4", "driver.decided@3", "driver.committed@3"])
def test_a_killed_querys_state_is_restored_from_its_changelog_and_the_history_contains_the_states_size(
    point: str, kafka: KafkaService, tmp_path: Path
) -> None:
    pipeline = Pipeline(kafka.bootstrap_servers, tmp_path, plan="update", partitions=2, max_offsets=20, spark=_ROCKS_DB)
    try:
        pipeline.feed(100, keys=_KEYS)
        assert pipeline.process(f"{point}=kill").ended() == KILLED
        last = pipeline.process()
        assert last.ended() == 0, last.text[-3000:]
    finally:
        pipeline.close()
    seen = pipeline.visible()
    fed = Counter(value.split("-")[0] for value in pipeline.given)
    # Each batch outputs the new count for each of its keys: no count appears twice, and the last one is correct.
    assert set(seen.values()) == {1}
    counts = [value.split(":") for value in seen]
    assert {key: max(int(count) for name, count in counts if name == key) for key in fed} == fed
    checkpoint = Path(pipeline.options.checkpoint)
    assert list(checkpoint.rglob("*.changelog"))
    found = read(checkpoint).checkpoints
    runs = [[one for one in found if one.run_id == run] for run in dict.fromkeys(one.run_id for one in found)]
    for run in runs:
        assert run[0].state == ()  # Spark reports the state only once the first batch is over
        for one in run[1:]:
            (size,) = one.state
            assert (size.operator, size.rows) == ("stateStoreSave", _KEYS)
            assert size.memory_bytes > 0
            assert any(name.startswith("rocksdb") for name in size.sizes)
    assert sum(len(run) - 1 for run in runs) >= 2
