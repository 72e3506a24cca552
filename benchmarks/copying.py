"""Copy the same records from Kafka to Kafka, exactly once, with this project and its peers in turn, on one broker.

The reader that counts the output also measures the time from the broker's first accepted record to its last. So a system's start
does not lower its rate. Spark writes its first record only after it has read its first batch. So this project's rate leaves out
that batch's records, although some of the measured time went into writing them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from benchmarks.counting import Count, count
from benchmarks.measured import TWOPC, Case, Missing
from benchmarks.peers import flink, quix
from benchmarks.streaming import queries
from benchmarks.turns import in_turn

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from benchmarks.settings import Settings

TITLE: Final = "Kafka to Kafka, exactly once, beside other systems"
X_LABEL: Final = ""
CASE: Final = "Kafka to Kafka"
#: A batch of this size takes about one second, which is also Flink's checkpoint interval here.
_ROWS: Final = 2_000_000
_BATCH_ROWS: Final = 400_000


def cases(_: Settings) -> dict[str, None]:
    """Return the one case's name."""
    return {CASE: None}


def measure(settings: Settings) -> Iterator[Case | Missing]:
    """Yield the one case, and the peers that could not be measured."""
    rows = settings.rows(_ROWS)
    with queries() as bench:
        batch_rows = min(rows, _BATCH_ROWS)
        source = bench.source(batch_rows, rows // batch_rows)
        topics, servers = bench.topics, bench.topics.bootstrap_servers

        def copied(run: Callable[[str], None]) -> Count:
            output = topics.create()
            run(output)
            found = count(servers, output, expected=source.rows)
            topics.delete(output)
            return found

        sides: dict[str, Callable[[], Count]] = {
            TWOPC: lambda: bench.exactly_once(source, settings.exactly_once).output,
            flink.NAME: lambda: copied(lambda output: flink.run(servers, source.topic, output)),
            quix.NAME: lambda: copied(lambda output: quix.run(servers, source.topic, output, source.rows)),
        }
        # This installs missing peers, and warms up Spark, whose session stays open.
        ran, missing = in_turn(settings.rounds, sides, warm_up=1)
    yield Case(
        name=CASE,
        unit="records/s",
        samples={
            side: [one.rate(without=batch_rows if side == TWOPC else 0) for one in found] for side, found in ran.items()
        },
        counted={side: sum(one.records for one in found) for side, found in ran.items()},
    )
    yield from missing
