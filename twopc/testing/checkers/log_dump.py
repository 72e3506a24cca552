"""Read the real contents of a topic's partitions: rows with their producers, and the markers that end transactions.

This module parses the batches in Fetch responses, because they identify a record's producer. A consumer does not show
the producer.

Source: https://kafka.apache.org/documentation/#controlbatch (for the format of control records).
"""

from __future__ import annotations

from twopc.integration.batch_reader import read_batches
from twopc.testing.checkers.history import Kind, LogEntry, Position, Producer


def dump(bootstrap_servers: str, topic: str) -> list[LogEntry]:
    """Return every entry of every partition, up to the partition's high watermark.

    Raises:
        RetriableError: a leader does not respond, or returns an error.
    """
    entries: list[LogEntry] = []
    for partition, batch in read_batches({"bootstrap_servers": bootstrap_servers.split(",")}, topic):
        producer = Producer(batch.producer_id, batch.producer_epoch)
        for record in batch:
            kind = Kind.ROW
            if batch.is_control_batch:
                kind = Kind.COMMIT if record.commit else Kind.ABORT
            entries.append(LogEntry(Position(partition, record.offset), producer, kind))
    return entries
