"""Run the query for ``benchmarks.peers.flink``, in an environment with apache-flink and without this project."""

from __future__ import annotations

import sys
import uuid
from pathlib import Path

from pyflink.common import Configuration  # type: ignore[import-not-found]
from pyflink.table import EnvironmentSettings, TableEnvironment  # type: ignore[import-not-found]

_TABLE = """
CREATE TABLE {name} (k BYTES, v BYTES) WITH (
  'connector' = 'kafka', 'topic' = '{topic}', 'properties.bootstrap.servers' = '{servers}',
  'key.format' = 'raw', 'key.fields' = 'k', 'value.format' = 'raw', 'value.fields-include' = 'EXCEPT_KEY', {options}
)
"""
_SOURCE = (
    "'scan.startup.mode' = 'earliest-offset', 'scan.bounded.mode' = 'latest-offset', 'properties.group.id' = '{id}'"
)
_SINK = (
    "'sink.delivery-guarantee' = 'exactly-once', 'sink.transactional-id-prefix' = '{id}', "
    "'properties.transaction.timeout.ms' = '600000'"
)


def main(servers: str, source: str, output: str, connector: str) -> None:
    """Copy the topic's records with two tasks and a checkpoint every second. The last checkpoint commits the rest."""
    settings = Configuration()
    settings.set_string("pipeline.jars", Path(connector).as_uri())
    settings.set_string("parallelism.default", "2")
    settings.set_string("execution.checkpointing.interval", "1 s")
    tables = TableEnvironment.create(
        EnvironmentSettings.new_instance().in_streaming_mode().with_configuration(settings).build()
    )
    query = uuid.uuid4().hex
    for name, topic, options in (("source", source, _SOURCE), ("sink", output, _SINK)):
        tables.execute_sql(
            _TABLE.format(name=f"bench_{name}", topic=topic, servers=servers, options=options.format(id=query))
        )
    tables.execute_sql("INSERT INTO bench_sink SELECT k, v FROM bench_source").wait()


if __name__ == "__main__":
    main(*sys.argv[1:5])
