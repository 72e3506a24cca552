"""Use Spark to find which rows of a half-written batch are missing from the output. Compare rows as multisets."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from functools import cache, partial
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa
from pyspark.sql import Window
from pyspark.sql import functions as sf
from pyspark.sql import types as st

from twopc.errors import ConfigurationError
from twopc.integration.migrate.handover import Bounds, Handover
from twopc.integration.migrate.identity import Row, content_of, identity_of
from twopc.integration.migrate.output import kept, records_of
from twopc.integration.spark.frame import arrange
from twopc.integration.spark.installed import HERE
from twopc.integration.spark.worker import save_address_space
from twopc.integration.verify.expressions import parse

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from pyspark.sql import Column, DataFrame, SparkSession

    from twopc.integration.spark.installed import Installed
    from twopc.integration.verify.expressions import Expression
    from twopc.sinks.kafka import KafkaSink

logger = logging.getLogger(__name__)

_ID: Final = "__twopc_id"
_CONTENT: Final = "__twopc_content"
_PLACE: Final = "__twopc_place"
_TASK: Final = "__twopc_task"
_RANK: Final = "__twopc_rank"
_THERE: Final = "__twopc_there"
_BOTH: Final = "__twopc_both"
_ADDED: Final = (st.StructField(_ID, st.BinaryType()), st.StructField(_CONTENT, st.BinaryType()))
_RECORDS: Final = f"topic string, partition int, offset long, is_exact boolean, {_ID} binary"
_COLUMNS: Final[tuple[str, ...]] = ("topic", "key", "value", "headers")
_WINDOW_ROWS: Final = 10_000


@dataclass(frozen=True, kw_only=True)
class Numbers:
    """The counts from comparing a batch with the records within the bounds.

    Attributes:
        rows: rows of the batch.
        already: rows that are in the output and are not written again.
        rest: rows that must still be written.
        surplus: records that occur more often in the output than in the batch. These duplicates from earlier attempts stay in
            the output.
        others: records that are as new as the batch, but are not the batch's rows.
        unclear: rows whose only matching records were written just before the batch. Depending on the clocks, those
            records are from this batch or from an earlier one. A key does not help: with an aggregate, for example,
            each batch contains the same keys.
        unidentified: rows in which the key expression finds nothing.
        ambiguous: keys that several rows with different contents share.
        elsewhere: rows for topics that the hand-over does not name.
    """

    rows: int
    already: int
    rest: int
    surplus: int
    others: int
    unclear: int
    unidentified: int
    ambiguous: int
    elsewhere: int


class Comparison:
    """Compare a batch, as the sink would write it, with the records within the bounds.

    Evaluate the batch only once, and cache the batch until :meth:`release`. If the broker has deleted some of the records within
    the bounds, their rows count as missing.

    Args:
        frame: the batch.
        sink: describes the output's cluster.
        handover: a hand-over of the kind ``rest``.
        select: the SQL expressions that make the sinks' columns, by sink name; see ``exactly_once``.

    Raises:
        SchemaError: the sink cannot write the batch's columns, for example because there is no column ``value``.
        ConfigurationError: the sink writes to a topic that the hand-over does not name.
    """

    def __init__(
        self, frame: DataFrame, sink: KafkaSink, handover: Handover, select: Mapping[str, Sequence[str]] | None = None
    ) -> None:
        self._handover = kept(sink, handover)
        if deleted := [
            topic for topic, each in handover.topics.items() if _may_lack_rows(each, self._handover.topics[topic])
        ]:
            logger.warning(
                "the broker has deleted records from %s (retention.ms?). If these were rows of batch %d, they are written again",
                ", ".join(deleted),
                handover.batch_id,
            )
        self._columns = frame.columns
        places = (
            _identify(frame, sink, handover, select or {})
            .withColumn(_PLACE, sf.monotonically_increasing_id())
            .withColumn(_TASK, sf.spark_partition_id())
        )
        # A single evaluation yields both the numbers and the rows to write.
        self._rows = places.persist()
        self._sink = sink
        self._records = _records(frame.sparkSession, sink, self._handover).persist()

    def release(self) -> None:
        """Free the cached rows and records."""
        self._rows.unpersist()
        self._records.unpersist()

    def numbers(self) -> Numbers:
        """Count the rows and records."""
        rows = self._rows.groupBy(_ID).agg(
            sf.count("*").alias("rows"),
            sf.count_distinct(_CONTENT).alias("contents"),
            sf.sum(sf.col(_CONTENT).isNull().cast("int")).alias("elsewhere"),
        )
        exact = self._counted(sf.col("is_exact"), "exact")
        near = self._counted(~sf.col("is_exact"), "near")
        joined = rows.join(exact, _ID, "full_outer").join(near, _ID, "left").na.fill(0)
        already = sf.least(sf.col("rows"), sf.col("exact"))
        is_row = sf.col("rows") > 0
        [found] = joined.select(
            _sum(sf.col("rows"), "rows"),
            _sum(already, "already"),
            _sum(sf.when(is_row, sf.col("exact") - already), "surplus"),
            _sum(sf.when(~is_row, sf.col("exact")), "others"),
            _sum(sf.least(sf.col("near"), sf.col("rows") - already), "unclear"),
            _sum(sf.when(sf.col(_ID).isNull(), sf.col("rows") - sf.col("elsewhere")), "unidentified"),
            _sum(sf.col("elsewhere"), "elsewhere"),
            _sum(((sf.col("contents") > 1) & sf.col(_ID).isNotNull()).cast("int"), "ambiguous"),
        ).collect()
        facts: dict[str, int] = found.asDict()
        return Numbers(**facts, rest=facts["rows"] - facts["already"])

    def rest(self) -> DataFrame:
        """Return the rows to write. A task's rows stay in one task and keep their order."""
        there = self._counted(sf.col("is_exact"), _THERE)
        earlier = Window.partitionBy(_ID).orderBy(_PLACE)
        ranked = self._rows.withColumn(_RANK, sf.row_number().over(earlier)).join(there, _ID, "left")
        # If the output contains only some of several equal rows, these are the first ones, because the old sink wrote
        # each task's rows in order.
        missing = ranked.where(sf.col(_RANK) > sf.coalesce(sf.col(_THERE), sf.lit(0)))
        ordered = missing.repartition(_TASK).sortWithinPartitions(_PLACE)
        return ordered.select(*_places(len(self._columns))).toDF(*self._columns)

    def written_again(self, afterward: Handover) -> int:
        """Count the records within other bounds that are rows of the batch."""
        records = _records(self._rows.sparkSession, self._sink, kept(self._sink, afterward))
        return records.join(self._rows.select(_ID), _ID, "left_semi").count()

    def first_offsets(self) -> dict[str, dict[int, int]]:
        """Return where the batch begins in each partition. Assume that no row of the batch equals a row in an earlier batch."""
        found = {
            topic: {number: at.exact for number, at in each.items()} for topic, each in self._handover.topics.items()
        }
        near = self._records.where(~sf.col("is_exact")).join(self._rows.select(_ID), _ID, "left_semi")
        for topic, number, offset in near.groupBy("topic", "partition").agg(sf.min("offset")).collect():
            found[topic][number] = offset
        return found

    def _counted(self, condition: Column, name: str) -> DataFrame:
        return self._records.where(condition).groupBy(_ID).agg(sf.count("*").alias(name))


def _may_lack_rows(recorded: Mapping[int, Bounds], kept: Mapping[int, Bounds]) -> bool:
    """Whether the broker may have deleted rows of the batch, before the hand-over was recorded or since then."""
    return kept != recorded or any(bounds.follows_deletion for bounds in recorded.values())


def _sum(column: Column, name: str) -> Column:
    return sf.coalesce(sf.sum(column), sf.lit(0)).alias(name)


def _identify(frame: DataFrame, sink: KafkaSink, handover: Handover, select: Mapping[str, Sequence[str]]) -> DataFrame:
    """Add two columns to the batch: the identity and the content of the record that the sink writes for each row.

    The batch's own columns are called ``0``, ``1``, … and never leave the JVM.
    """
    arranged = arrange("", frame, (sink,), select=select)
    topic = sink.topic
    if topic is not None and topic not in handover.topics:
        raise ConfigurationError(
            f"the sink writes to {topic}, but the hand-over covers {', '.join(handover.topics)}. Nothing was written. Run "
            f"`twopc migrate cutover` again, with --topic {topic}"
        )
    written = {
        name: arranged.columns[index].in_form for name, index in arranged.views[sink.name].columns if name in _COLUMNS
    }
    made = arranged.base.selectExpr("*", *(f"{sql} AS `{name}`" for name, sql in written.items()))
    # PySpark refers to columns by name, which does not work for names with dots or for duplicate names.
    numbered = made.toDF(*_places(len(made.columns)))
    own, given = _places(len(frame.columns)), numbered.columns[-len(written) :]
    identity = partial(_identity, written=tuple(written), topic=topic, handover=handover, driver=HERE)
    # A plain function receives strings as Java reads them. Only the written columns are sent to Python, which does not
    # support all of Spark's types.
    each = sf.udf(identity, st.StructType(list(_ADDED)), useArrow=False)
    return numbered.select(*own, each(*given).alias(_BOTH)).select(*own, f"{_BOTH}.*")


def _places(count: int) -> list[str]:
    """Name the columns by their positions."""
    return [str(number) for number in range(count)]


def _identity(
    *columns: Any, written: tuple[str, ...], topic: str | None, handover: Handover, driver: Installed
) -> tuple[bytes | None, bytes | None]:
    """Return the identity and the content of a row's record, from the columns ``written``. This function runs in a task.

    Spark strings may contain any bytes. Spark's own sink writes header keys and topics as Java strings, so each invalid
    sequence became U+FFFD (``KafkaWriteTask.scala``).

    Raises:
        ConfigurationError: this worker's code differs from the driver's code, so the worker might find a different identity.
    """
    HERE.require_same(driver, "driver")
    found = dict(zip(written, columns, strict=True))
    headers = [(one[0], _as_bytes(one[1])) if one else (None, None) for one in found.get("headers") or ()]
    row = Row(_as_bytes(found.get("key")), _as_bytes(found["value"]), headers)
    # No sink can have written a row without a topic, so such a row is part of the rest.
    where = topic or found.get("topic") or ""
    if where and where not in handover.topics:
        return None, None
    return identity_of(where, row, _expression(handover.key)), content_of(where, row)


def _as_bytes(found: bytes | bytearray | None) -> bytes | None:
    return None if found is None else bytes(found)


@cache
def _expression(key: str | None) -> Expression | None:
    return None if key is None else parse(key)


def _records(session: SparkSession, sink: KafkaSink, handover: Handover) -> DataFrame:
    """Return the identities of the records within the bounds. Each partition of the output is read in its own task."""
    ranges = [
        (topic, number, bounds.start, bounds.exact, bounds.end)
        for topic, partitions in handover.topics.items()
        for number, bounds in partitions.items()
    ]
    schema = "topic string, partition int, start long, exact long, end long"
    each = session.createDataFrame(ranges, schema).repartition(len(ranges), "topic", "partition")
    return each.mapInArrow(partial(_read, sink=sink, handover=handover, driver=HERE), _RECORDS)


def _read(
    batches: Iterable[pa.RecordBatch], *, sink: KafkaSink, handover: Handover, driver: Installed
) -> Iterator[pa.RecordBatch]:
    """Read some partitions of the output within their bounds. This function runs in a task.

    Raises:
        ConfigurationError: this worker's code differs from the driver's code, so the worker might find different identities.
    """
    HERE.require_same(driver, "driver")
    save_address_space()
    key = _expression(handover.key)
    for batch in batches:
        for each in batch.to_pylist():
            bounds = Bounds(start=each["start"], exact=each["exact"], end=each["end"])
            mine = Handover(
                query_id="",
                batch_id=0,
                offsets=(),
                kind=handover.kind,
                topics={each["topic"]: {each["partition"]: bounds}},
            )
            rows = []
            for topic, message in records_of(sink, mine):
                offset = message.offset() or 0
                identity = identity_of(topic, message, key)
                rows.append((topic, message.partition(), offset, offset >= bounds.exact, identity))
                if len(rows) == _WINDOW_ROWS:
                    yield _as_batch(rows)
                    rows = []
            yield _as_batch(rows)


def _as_batch(rows: list[tuple[Any, ...]]) -> pa.RecordBatch:
    kinds = {
        "topic": pa.string(),
        "partition": pa.int32(),
        "offset": pa.int64(),
        "is_exact": pa.bool_(),
        _ID: pa.binary(),
    }
    arrays = [pa.array([row[place] for row in rows], kind) for place, kind in enumerate(kinds.values())]
    return pa.RecordBatch.from_arrays(arrays, list(kinds))
