from __future__ import annotations

import logging
import threading
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from twopc.errors import RetriableError
from twopc.sinks.kafka.lanes import _LANES, _MANY, Lanes

if TYPE_CHECKING:
    import pytest

MANY = [(number,) for number in range(3 * _MANY + 1)]
ANSWERS = [number for (number,) in MANY]


@dataclass
class Connection:
    """Answers each request with its number."""

    sent: list[int] = field(default_factory=list)
    is_closed: bool = False

    def send_all(self, requests: list[tuple[int]]) -> list[int]:
        self.sent += [number for (number,) in requests]
        return [number for (number,) in requests]

    def close(self) -> None:
        self.is_closed = True


class Opened:
    """Opens further connections if it may."""

    def __init__(self) -> None:
        self.connections: list[Connection] = []
        self.may = threading.Event()
        self.may.set()

    def __call__(self) -> Any:
        assert self.may.wait(30)
        self.connections.append(Connection())
        return self.connections[-1]


def lanes_over(first: Any, connect: Any) -> Lanes:
    """Lanes over fake connections, without Kafka."""
    return Lanes(first, connect)


def opened_all(lanes: Lanes) -> None:
    """Wait until no connection is being opened."""
    assert lanes._opening is not None
    lanes._opening.join(30)
    assert not lanes._opening.is_alive()


def test_few_requests_use_only_one_connection() -> None:
    first, opened = Connection(), Opened()
    lanes = lanes_over(first, opened)
    assert lanes.send_all(MANY[: _MANY - 1]) == ANSWERS[: _MANY - 1]
    assert lanes._opening is None
    assert first.sent == ANSWERS[: _MANY - 1]


def test_many_requests_are_shared_out_once_more_connections_exist() -> None:
    """Fails if the responses come in a different order from the requests."""
    first, opened = Connection(), Opened()
    lanes = lanes_over(first, opened)
    assert lanes.send_all(MANY) == ANSWERS  # over the only connection
    assert first.sent == ANSWERS
    opened_all(lanes)
    assert len(lanes._further) == _LANES - 1
    first.sent.clear()
    assert lanes.send_all(MANY) == ANSWERS
    shares = [len(one.sent) for one in (first, *opened.connections)]
    assert sum(shares) == len(MANY) and max(shares) - min(shares) <= 1
    assert lanes.send_all(MANY) == ANSWERS
    assert len(opened.connections) == _LANES - 1
    lanes.close()
    assert all(one.is_closed for one in opened.connections) and not first.is_closed


def test_a_commit_waits_for_no_further_connection() -> None:
    opened = Opened()
    opened.may.clear()
    lanes = lanes_over(Connection(), opened)
    assert lanes.send_all(MANY) == ANSWERS
    assert lanes.send_all(MANY) == ANSWERS
    lanes.close()
    opened.may.set()
    opened_all(lanes)
    assert [one.is_closed for one in opened.connections] == [True], (
        "the connection should be closed, because the lanes were closed meanwhile"
    )
    assert lanes.send_all(MANY) == ANSWERS
    assert len(opened.connections) == 1


def test_if_no_further_connection_can_be_opened_the_client_continues_with_one(caplog: pytest.LogCaptureFixture) -> None:
    def refuse() -> Any:
        raise RetriableError("too many connections")

    lanes = lanes_over(Connection(), refuse)
    with caplog.at_level(logging.WARNING):
        for _ in range(2):
            assert lanes.send_all(MANY) == ANSWERS
            opened_all(lanes)
    assert [record.getMessage() for record in caplog.records] == 2 * [
        "no additional connection could be opened. Large commits take longer, but no data is at risk. Cause: too many connections"
    ]


def test_a_process_at_its_limit_of_threads_uses_the_connection_that_it_has(monkeypatch: pytest.MonkeyPatch) -> None:
    """Seen: a decided batch was not committed, because an additional connection could not be opened."""
    lanes = lanes_over(Connection(), Connection)

    def fail(_: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    with monkeypatch.context() as patched:
        patched.setattr(threading.Thread, "start", fail)
        assert lanes.send_all(MANY) == ANSWERS
