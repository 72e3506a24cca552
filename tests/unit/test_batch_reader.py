"""Records that brokers before 0.11 have stored are read from the log of an upgraded broker."""

from __future__ import annotations

from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest
from kafka.record.memory_records import MemoryRecordsBuilder

from twopc.integration import batch_reader

if TYPE_CHECKING:
    from collections.abc import Mapping


class Connection:
    """One partition of one topic."""

    def __init__(self, _: Mapping[str, Any]) -> None:
        self.admin = self

    def describe_topics(self, _: list[str]) -> list[dict[str, Any]]:
        return [{"partitions": [{"partition_index": 0, "leader_id": 1}]}]

    def close(self) -> None:
        """Nothing."""


@pytest.mark.parametrize(("magic", "compression", "batches"), [(0, 0, 3), (1, 0, 3), (1, 1, 1), (2, 0, 1)])
def test_records_of_every_message_format_are_read(
    magic: int, compression: int, batches: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    builder = MemoryRecordsBuilder(magic, compression, 10_000)
    for number in range(3):
        builder.append(timestamp=number, key=None, value=b"%d" % number)
    builder.close()
    monkeypatch.setattr(batch_reader, "BrokerConnection", Connection)
    found = SimpleNamespace(records=builder.buffer(), high_watermark=3)
    monkeypatch.setattr(batch_reader, "_fetch", lambda *_: found)
    read = [batch for _, batch in batch_reader.read_batches({}, "t")]
    assert len(read) == batches
    assert [record.value for batch in read for record in batch] == [b"0", b"1", b"2"]
    assert sum(batch.records_count for batch in read) == 3
    assert (read[0].base_offset, read[-1].next_offset) == (0, 3)
    assert not any(batch.is_control_batch or batch.is_transactional for batch in read)
    assert {(batch.producer_id, batch.producer_epoch) for batch in read} == {(-1, -1)}
