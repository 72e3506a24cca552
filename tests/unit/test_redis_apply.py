"""A failure in Redis makes an undecided attempt fail, and blocks a decided slice, even if a retry could have cleared it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from redis.exceptions import ConnectionError as RedisConnectionError

from twopc.errors import UnavailableError
from twopc.sinks.redis import IncrBy, RedisSink
from twopc.sinks.redis.committer import _CHANGED
from twopc.sinks.redis.errors import SlotMovingError
from twopc.sinks.redis.keys import RedisHandle

if TYPE_CHECKING:
    from collections.abc import Callable

    from twopc.sinks.redis.committer import RedisCommitter

DONE, EARLIER, GONE, STALE = [b"DONE"], [b"EARLIER"], [b"GONE"], [b"STALE"]
_NO_REPLICAS = b"NOREPLICAS Not enough good replicas to write."
_WRONG_TYPE = b"WRONGTYPE Operation against a key"


def failed(reason: bytes) -> list[bytes]:
    return [b"FAILED", b"k", reason]


def committer_of_s() -> RedisCommitter:
    return RedisSink(name="s", url="redis://h", mapping=IncrBy("n")).create_committer()


def blockers_after(*answers: Any) -> tuple[list[str], list[bool]]:
    """Apply a slice with one chunk for each of these last responses. Also say which responses would be retried."""
    retried: list[bool] = []

    def execute(calls: Any, *, retry_if: Callable[[Any], bool]) -> list[Any]:
        assert len(calls) == len(answers)
        retried.extend(retry_if(answer) for answer in answers)
        return list(answers)

    committer = committer_of_s()
    committer._client.execute = execute  # type: ignore[method-assign, assignment]
    groups = ((-1, len(answers), len(answers)),)
    handle = RedisHandle(uuid="u", driver_epoch=1, rows=len(answers), checksum="", groups=groups)
    return committer._apply(handle, 1), retried


@pytest.mark.parametrize(
    ("answers", "blockers", "retried"),
    [
        ([DONE, DONE], [], [False, False]),
        ([STALE], [], [False]),
        ([GONE], [], [False]),
        (
            [DONE, failed(_NO_REPLICAS), EARLIER],
            ["key 'k': NOREPLICAS Not enough good replicas to write"],
            [False, True, True],
        ),
        (
            [failed(b"MISCONF Errors writing to the AOF file: No space left")],
            ["key 'k': MISCONF Errors writing to the AOF file: No space left"],
            [True],
        ),
        (
            [failed(_WRONG_TYPE), EARLIER],
            [f"key 'k': WRONGTYPE Operation against a key. {_CHANGED}"],
            [False, False],
        ),
        ([RedisConnectionError("closed"), EARLIER], ["Redis does not respond: closed"], [True, True]),
        ([DONE, EARLIER], ["Redis is too slow to apply every chunk within timeout_ms"], [False, True]),
    ],
    ids=["done", "stale", "gone", "no replicas", "disk full", "wrong type", "no response", "not sent again"],
)
def test_a_chunk_that_is_not_applied_blocks_its_slice(
    answers: list[Any], blockers: list[str], retried: list[bool]
) -> None:
    assert blockers_after(*answers) == (blockers, retried)


def test_a_rehearsal_that_a_moving_slot_interrupts_makes_the_attempt_fail(monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupt(*_: Any) -> None:
        raise SlotMovingError(7)

    committer = committer_of_s()
    monkeypatch.setattr(committer._check, "checksums", interrupt)
    with pytest.raises(
        UnavailableError, match=r"^sink 's', checking the staged rows: hash slot 7 is moving to another node"
    ):
        committer.confirm([], 0)
