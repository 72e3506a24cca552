"""The kill loop: run a streaming query on real Spark, kill it repeatedly, and compare its output with its input.

The loop accepts any ``foreachBatch`` function, or any function that returns a ``DataStreamWriter``::

    outcome = kill_loop(read_numbers, foreach_batch=append_to_table, directory=tmp_path)
    outcome.require_exactly_once()

See docs/test-your-sink.md.
"""

from twopc.testing.kill_loop.kills import Kill, Moment, Victim
from twopc.testing.kill_loop.loop import KillLoop, QueryFailedError
from twopc.testing.kill_loop.outcome import Outcome
from twopc.testing.kill_loop.records import Files, KafkaTopic, Source
from twopc.testing.kill_loop.seeded import kill_loop

__all__ = [
    "Files",
    "KafkaTopic",
    "Kill",
    "KillLoop",
    "Moment",
    "Outcome",
    "QueryFailedError",
    "Source",
    "Victim",
    "kill_loop",
]
