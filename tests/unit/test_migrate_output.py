"""The bounds of a batch in the output, while other programs go on writing."""

from __future__ import annotations

from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, Final

import pytest

from twopc.errors import ConfigurationError
from twopc.integration.migrate import output
from twopc.integration.migrate.handover import Bounds
from twopc.sinks.kafka import KafkaSink

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

SINK: Final = KafkaSink(name="orders", bootstrap_servers="127.0.0.1:1", topic="enriched")


@pytest.fixture
def respond(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Build the broker's responses to the two requests: the end offsets, and those for read_committed consumers."""
    found = SimpleNamespace(partitions=[SimpleNamespace(id=0), SimpleNamespace(id=1)])
    monkeypatch.setattr(output, "quiet_admin", lambda _: None)
    monkeypatch.setattr(output, "describe", lambda *_, **__: found)
    monkeypatch.setattr(output, "_at_time", lambda *_: {0: 1, 1: 1})

    def answers(*ends: dict[int, int]) -> None:
        left: Iterator[dict[int, int]] = iter(ends)

        def answer(*_: Any, **__: Any) -> dict[int, int]:
            return next(left)

        monkeypatch.setattr(output, "offsets", answer)

    return answers


def test_a_record_written_between_the_two_requests_is_not_taken_for_an_open_transaction(
    respond: Callable[..., None],
) -> None:
    respond({0: 5, 1: 5}, {0: 5, 1: 6})
    assert output.bounds_of(SINK, "enriched", 0, 0, None)[1] == Bounds(start=1, exact=1, end=5)


def test_an_open_transaction_is_refused_and_the_error_names_its_partition(respond: Callable[..., None]) -> None:
    respond({0: 5, 1: 5}, {0: 6, 1: 3})
    with pytest.raises(ConfigurationError, match=r"enriched\[1\] contains an open transaction"):
        output.bounds_of(SINK, "enriched", 0, 0, None)
