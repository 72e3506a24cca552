"""Run the query for ``benchmarks.peers.quix``, in an environment with quixstreams and without this project."""

from __future__ import annotations

import sys
import uuid

from quixstreams import Application  # type: ignore[import-not-found]

_IDLE_S = 60


def main(servers: str, source: str, output: str, rows: int) -> None:
    """Copy ``rows`` records as bytes, then end. The last checkpoint commits the rest."""
    app = Application(
        broker_address=servers,
        consumer_group=uuid.uuid4().hex,
        auto_offset_reset="earliest",
        processing_guarantee="exactly-once",
        auto_create_topics=False,
        use_changelog_topics=False,
    )
    copied = app.topic(source, key_deserializer="bytes", value_deserializer="bytes")
    app.dataframe(copied).to_topic(app.topic(output, key_serializer="bytes", value_serializer="bytes"))
    app.run(count=rows, timeout=_IDLE_S)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], sys.argv[3], int(sys.argv[4]))
