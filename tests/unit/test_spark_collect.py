"""A batch that does not fit in the driver, by our limit or by Spark's own, is left to the tasks."""

from __future__ import annotations

import contextlib
import socket
import threading
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest

from twopc.integration.spark import collect as collecting
from twopc.integration.spark.collect import Stream, collect

REFUSED = "Total size of serialized results of 3 tasks (2.9 MiB) is bigger than spark.driver.maxResultSize (1024.0 KiB)"


def collected(
    error: str, max_bytes: int | None, monkeypatch: pytest.MonkeyPatch, *, budget: Any = None
) -> list[pa.RecordBatch] | None:
    """The result of a DataFrame whose job fails before Spark has sent any of its rows."""

    def fail() -> None:
        raise RuntimeError(error)

    frame = SimpleNamespace(
        _jdf=SimpleNamespace(collectAsArrowToPython=lambda: (1, "", SimpleNamespace(getResult=fail)))
    )
    rows: Any = SimpleNamespace(for_driver=lambda: (frame, list))
    monkeypatch.setattr("pyspark.sql.pandas.conversion._load_from_socket", lambda *_: None)
    monkeypatch.setattr(collecting, "unwrap_spark_exception", contextlib.nullcontext)  # it needs a session
    return collect(rows, max_bytes=max_bytes, budget=budget, cancel=lambda: None)


def test_rows_that_spark_refuses_to_collect_are_left_to_the_tasks(monkeypatch: pytest.MonkeyPatch) -> None:
    assert collected(REFUSED, 10_000_000, monkeypatch) is None
    within: Any = SimpleNamespace(bounded=lambda frame, _: frame._jdf)
    assert collected(REFUSED, 10_000_000, monkeypatch, budget=within) is None


def test_rows_that_cannot_be_bounded_are_left_to_the_tasks_before_anything_is_evaluated(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    without: Any = SimpleNamespace(bounded=lambda *_: None)
    assert collected("evaluated", 10_000_000, monkeypatch, budget=without) is None


@pytest.mark.parametrize(("error", "max_bytes"), [("a task failed", 10_000_000), (REFUSED, None)])
def test_any_other_failure_is_raised_and_so_is_a_refusal_if_only_the_driver_may_write(
    error: str, max_bytes: int | None, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A JVM that runs out of memory names no setting of ours; seen with `always` and a batch of 500 MB, at every start."""
    with pytest.raises(RuntimeError, match=error[:10]):
        collected(error, max_bytes, monkeypatch)
    assert ("set write_by='auto'" in caplog.text) == (max_bytes is None)


@pytest.mark.timeout(60)
def test_rows_that_cannot_be_read_do_not_keep_spark_waiting() -> None:
    """Spark's scheduler sends the rows. Seen: after an error in the driver, every query waited for it."""
    here, there = socket.socketpair()
    errors: list[OSError] = []
    batch = pa.record_batch({"n": [1]})
    rows = pa.BufferOutputStream()
    with pa.ipc.new_stream(rows, batch.schema) as writer:
        writer.write_batch(batch)

    def send() -> None:
        try:
            there.sendall(rows.getvalue())
            there.sendall(bytes(100_000_000))  # more than the connection's buffers hold
        except OSError as error:
            errors.append(error)

    def fail() -> None:
        raise MemoryError

    sending = threading.Thread(target=send, daemon=True)
    sending.start()
    stream = here.makefile("rwb", 65536)  # as PySpark does
    here.close()  # only the stream keeps the connection
    with pytest.raises(MemoryError):
        Stream(0, fail).load_stream(stream)
    sending.join(30)
    assert errors  # although the traceback of the reader's error may keep the connection
    there.close()
