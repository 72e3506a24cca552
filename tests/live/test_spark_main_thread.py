"""A program's main thread may end while another thread waits for its query."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pyarrow as pa
import pytest

from tests.live.delta.test_spark import created, rows

_ROOT = Path(__file__).parents[2]
_PROGRAM = """
import json, sys, threading
from pathlib import Path
from tests.live.spark_query import session
from twopc import exactly_once
from twopc.sinks.delta import DeltaSink

directory = Path(sys.argv[1])
source = directory / "source"
source.mkdir()


def feed(number):
    (directory / "rows").write_text(json.dumps({"id": str(number), "n": number}))
    (directory / "rows").rename(source / f"{number}.json")


def go_on():
    threading.main_thread().join()
    for number in (1, 2):
        feed(number)
        query.processAllAvailable()
    query.stop()
    print("went on", flush=True)


spark = session(directory)
frame = spark.readStream.schema("id STRING, n BIGINT").json(str(source))
each = exactly_once(DeltaSink(name="orders", table_uri=str(directory / "orders")))
query = frame.writeStream.foreachBatch(each).option("checkpointLocation", str(directory / "checkpoint")).start()
feed(0)
query.processAllAvailable()
threading.Thread(target=go_on).start()
"""


@pytest.mark.filterwarnings("ignore:unclosed:ResourceWarning")
def test_a_query_goes_on_after_the_main_thread_has_ended(tmp_path: Path) -> None:
    """The usual end of such a program is ``Thread(target=query.awaitTermination).start()``."""
    sink = created(tmp_path, [("id", pa.string()), ("n", pa.int64())])
    command = [sys.executable, "-c", _PROGRAM, str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=240, check=False, cwd=_ROOT)
    assert (done.stdout, done.returncode) == ("went on\n", 0), done.stderr[-4000:]
    assert rows(sink) == [("0", 0), ("1", 1), ("2", 2)]
