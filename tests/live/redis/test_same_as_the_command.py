"""The check before the decision says yes if and only if the real commands succeed, over generated keys and rows.

Rows are staged once, and checked against every value that their key may hold. The bare commands run on a twin of the
key: if one fails there, the sink must refuse the batch before its decision; if none does, it must not. Every confirmed
batch is also applied. A command that succeeds but stores another number than the row's must be refused, too.
"""

from __future__ import annotations

import contextlib
import math
import random
from dataclasses import dataclass
from decimal import Context, Decimal
from fractions import Fraction
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa
import pytest
import redis

from tests.live.one_task import batch
from tests.live.redis.support import left_behind, sink_of, unique
from twopc.attempt import Evidence
from twopc.errors import BadRecordError
from twopc.sinks.redis.mappings import (
    Delete,
    Expire,
    HashIncrBy,
    HashSet,
    IncrBy,
    IncrByFloat,
    ListPush,
    Set,
    SetAdd,
    SortedSetAdd,
    StreamAdd,
)
from twopc.testing.contract.drivers import Driver

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from tests.live.redis.services import RedisService
    from twopc.sinks.redis.mappings import Mapping

_MAX: Final = 2**63 - 1
#: Values of a key that some programs treat as a number and others do not.
_NUMBERS: Final = (
    "", "0", "-0", "00", "007", "-007", "+5", " 5", "5 ", "5\n", "5\0", "1_000", "1,5", "0x10", "0b1", "1e3", "1E3", "1.0", "1.",
    ".5", "-.5", "--5", "-", "nan", "-nan", "inf", "-inf", "Infinity", "1e308", "1e400", "1e4000", "1e4932", "-1e4932", "1e5000",
    "1e-320", "5e-324", "1e-5000", "9" * 18, "9" * 19, "9" * 25, "9" * 310, "0." + "3" * 400, "x", "\u0661", "9007199254740993",
    *(str(sign * (edge + off)) for edge in (2**53, 2**62, 2**63) for sign in (1, -1) for off in (-2, -1, 0, 1, 2)),
)  # fmt: skip
_STEPS: Final = (0, 1, -1, 7, 2**31, 2**53 + 1, 2**62, -(2**62), _MAX, -_MAX, -_MAX - 1)
_FLOATS: Final = (
    0.0, -0.0, 0.1, -1.5, 2.0**53, 1e23, 1e300, 1.7e308, -1.7e308, 123456.7, 99999999.99, 0.12345678901234568, 1e-17, 1.5e-16,
)  # fmt: skip
#: INCRBYFLOAT rounds these to 17 decimals, but a score can be each of them.
_TINY_FLOATS: Final = (1e-320, 5e-324, 0.1 * 0.2, 1e-18, -1.5e-17, 1 / 123)
_INTEGERS: Final = (*_STEPS, *(sign * (2**53 + off) for sign in (1, -1) for off in (-1, 0, 1, 2, 3)), 2**62 + 2**10)
#: For each type, numbers with at most 18 digits, and numbers with so many that neither a counter nor a score keeps them.
_DECIMALS: Final[tuple[tuple[pa.DataType, tuple[str, ...]], ...]] = (
    (pa.decimal128(38, 0), ("0", "1", "-7", str(2**53 + 1), str(2**63), str(2**64 - 1), "1" + "0" * 17, "1" * 25, "9" * 38)),
    (pa.decimal128(38, 38), ("0", "0.1", "-0.1", "1E-7", "1E-17", "1E-18", "1E-38", "0.00000000123456789", "0." + "3" * 38)),
    (pa.decimal128(38, 18), ("0", "1E-7", "123456.7", "-99999999.99", "123456789.123456789", "1." + "3" * 18, "1" * 20 + ".5")),
    (pa.decimal128(10, 2), ("0", "0.01", "-12345678.91")),
    (pa.decimal128(10, -2), ("0", "12E2", "-9E11")),
)  # fmt: skip
_EXPIRIES: Final = (1, 0, -1, 60_000, -(2**63), 2**53, 2**62, _MAX, _MAX - 1, _MAX - 253_402_300_799_999)
_LAST_MS: Final = 2**64 - 1
#: For each type, the command that creates a key of that type.
_TYPES: Final[tuple[tuple[Any, ...], ...]] = (
    ("SET", "text"), ("HSET", "n", "text"), ("SADD", "m"), ("ZADD", 1, "m"), ("RPUSH", "v"), ("XADD", "*", "a", "b"),
    ("XADD", f"{_LAST_MS - 1}-{_LAST_MS}", "a", "b"), ("XADD", f"{_LAST_MS}-{_LAST_MS}", "a", "b"), ("SETBIT", 7, 1),
    ("PFADD", "a"), ("GEOADD", 1, 1, "m"),
)  # fmt: skip


@dataclass(frozen=True)
class Kind:
    """One mapping: how its rows are made, and which values its key may hold."""

    mapping: Mapping
    column: Callable[[random.Random, int], dict[str, Any]]
    counter: tuple[Any, ...] = ()  # stores one of _NUMBERS under its key; if empty, only the key's type varies


def _ints(rng: random.Random, rows: int) -> dict[str, Any]:
    near = rng.choice((_STEPS, range(-3, 4)))
    return {name: pa.array([rng.choice(near) for _ in range(rows)], pa.int64()) for name in ("n", "o")}


def _numbers(rng: random.Random, rows: int, floats: tuple[float, ...]) -> dict[str, Any]:
    """Floats mostly, but also integers and decimals. Few of the numbers are ones that a command would change."""
    plain: tuple[tuple[pa.DataType, tuple[Any, ...]], ...] = ((pa.float64(), floats), (pa.int64(), _INTEGERS))
    decimals = tuple((kind, tuple(map(Decimal, texts))) for kind, texts in _DECIMALS)
    kind, choices = rng.choice((*plain, rng.choice(decimals)))
    few = rng.sample(choices, min(3, len(choices)))
    return {"f": pa.array([rng.choice(few) for _ in range(rows)], kind)}


def _increments(rng: random.Random, rows: int) -> dict[str, Any]:
    return _numbers(rng, rows, rng.choice((_FLOATS, (*_FLOATS, *_TINY_FLOATS))))


def _scores(rng: random.Random, rows: int) -> dict[str, Any]:
    return _numbers(rng, rows, (*_FLOATS, *_TINY_FLOATS))


def _from(name: str, choices: tuple[Any, ...]) -> Callable[[random.Random, int], dict[str, Any]]:
    return lambda rng, rows: {name: [rng.choice(choices) for _ in range(rows)]}


_TEXTS: Final = _from("v", (b"", b"\0", b"a", "ü".encode(), b"x" * 5_000))
KINDS: Final = (
    Kind(IncrBy("{k}", "n"), _ints, ("SET",)),
    Kind(IncrBy("{k}", _MAX), _ints, ("SET",)),
    Kind(HashIncrBy("{k}", ("n", "o")), _ints, ("HSET", "n")),
    Kind(IncrByFloat("{k}", "f"), _increments, ("SET",)),
    Kind(IncrByFloat("{k}", "n"), _ints, ("SET",)),
    Kind(Set("{k}", "v"), _TEXTS),
    Kind(Set("{k}", "v", expire_ms=_MAX - 253_402_300_799_999), _TEXTS),
    Kind(HashSet("{k}", ("v",)), _TEXTS),
    Kind(SetAdd("{k}", "v"), _TEXTS),
    Kind(ListPush("{k}", "v"), _TEXTS),
    Kind(SortedSetAdd("{k}", "f", "f"), _scores),
    Kind(StreamAdd("{k}", ("v",)), _TEXTS),
    Kind(Expire("{k}", "ms"), _from("ms", _EXPIRIES)),
    Kind(Delete("{k}"), _TEXTS),
)


#: Longer than the commands of one comparison take.
_SOON_MS = 1_000


class Twins:
    """A key that the sink changes, and its twin that the bare commands change, on one server."""

    def __init__(self, url: str, kind: Kind, rng: random.Random, states: int) -> None:
        self._client: Any = redis.Redis.from_url(url)
        self._kind, self._rng, self._sample = kind, rng, states
        self._key, self._twin = unique(), unique()
        self.sink = sink_of(url, kind.mapping, chunk_rows=2, timeout_ms=30_000)
        self._driver = Driver(self.sink)
        self._scan_start = self._driver.begin()
        self.outcomes = {True: 0, False: 0}

    def close(self) -> None:
        self._driver.close()
        self._client.close()

    def try_rows(self) -> list[str]:
        """Stage generated rows once, and compare for every value of the key. Return the differences."""
        tasks = [self._kind.column(self._rng, self._rng.randint(1, 4)) for _ in range(self._rng.randint(1, 2))]
        words = [words for columns in tasks for words in self._words(columns)]
        changed = [told for columns in tasks for told in self._changed(columns)]
        try:
            handles = [self.prepare(columns, number) for number, columns in enumerate(tasks)]
        except BadRecordError as refused:
            if changed:
                self.outcomes[False] += 1
                return []
            return [told for held in self._states() if (told := self._compare(held, words, str(refused)))]
        wrong = [f"{self._kind.mapping} stages {told}" for told in changed]
        applied = None
        for held in self._states():
            refusal = self.refusal_of(handles, held)
            wrong += [told] if (told := self._compare(held, words, refusal)) else []
            applied = applied if refusal else (held,)
        if applied:
            wrong += self._apply(handles, applied[0], words)
        self._driver.committer.abort(handles)
        return wrong

    def prepare(self, columns: dict[str, Any], partition: int = 0) -> Any:
        """Stage one task's rows; returns its handle."""
        return self._driver.prepare(self._rows(columns), partition=partition)

    def refusal_of(self, handles: list[Any], held: Any) -> str:
        self._hold(self._key, held)
        before = self._state(self._key)
        try:
            self._driver.committer.confirm(handles, 0)
        except BadRecordError as error:
            return str(error)
        finally:
            assert self._state(self._key) == before
        return ""

    def _compare(self, held: Any, words: list[tuple[Any, ...]], refusal: str) -> str:
        self._hold(self._twin, held)
        error = self._run(words)
        self.outcomes[not error] += 1
        if bool(error) == bool(refusal):
            return ""
        return f"{self._kind.mapping}, key holding {held}, {words}: command {error or 'succeeds'}, sink {refusal or 'confirms'}"

    def _apply(self, handles: list[Any], held: Any, words: list[tuple[Any, ...]]) -> list[str]:
        """A confirmed batch can be applied, and has the effect of the commands."""
        self._hold(self._key, held)
        self._hold(self._twin, held)
        found = self._driver.committer.commit(handles, self._scan_start)
        self._scan_start = self._driver.begin()
        error = self._run(words)
        states = self._state(self._key), self._state(self._twin)
        if set(found.values()) == {Evidence.COMMITTED} and not error and states[0] == states[1]:
            return []
        return [f"{self._kind.mapping}, key holding {held}, {words}: {found.values()}, {error}, {states}"]

    def _states(self) -> list[Any]:
        """The commands that give a key a value; None: the key is absent."""
        types = _TYPES
        if isinstance(self._kind.mapping, Set):
            # SET replaces a key of any type; the sink refuses to, by choice. Another test covers that refusal.
            types = tuple(one for one in _TYPES if one[0] in ("SET", "SETBIT", "PFADD"))
        numbers = [(*self._kind.counter, number) for number in _NUMBERS] if self._kind.counter else []
        states = [None, *types, *numbers]
        return self._rng.sample(states, min(self._sample, len(states))) if self._sample else states

    def _hold(self, key: str, held: Any) -> None:
        self._client.delete(key)
        if held:
            self._client.execute_command(held[0], key, *held[1:])

    def _rows(self, columns: dict[str, Any]) -> pa.RecordBatch:
        return batch(k=[self._key] * len(next(iter(columns.values()))), **columns)

    def _words(self, columns: dict[str, Any]) -> Iterator[tuple[Any, ...]]:
        """The commands of some rows, on the twin. A number that the sink refuses never becomes one of the sink's commands."""
        mapping = self._kind.mapping
        if isinstance(mapping, Expire):
            yield from (("PEXPIRE", self._twin, ms) for ms in columns["ms"])
        elif isinstance(mapping, IncrByFloat):
            yield from (("INCRBYFLOAT", self._twin, text) for text in _texts(columns[mapping.by]))
        elif isinstance(mapping, SortedSetAdd):
            yield from (("ZADD", self._twin, text, text) for text in _texts(columns[mapping.score]))
        else:
            commands = mapping.encode(self._rows(columns))
            for at in range(0, len(commands.flat), commands.words):
                yield (commands.name, self._twin, *commands.flat[at + 1 : at + commands.words])

    def _changed(self, columns: dict[str, Any]) -> Iterator[str]:
        """The numbers that the command changes even if their key is new."""
        mapping = self._kind.mapping
        if not isinstance(mapping, (IncrByFloat, SortedSetAdd)):
            return
        column = columns[mapping.by if isinstance(mapping, IncrByFloat) else mapping.score]
        for number, command in zip(column.to_pylist(), self._words(columns), strict=True):
            self._client.delete(self._twin)
            self._client.execute_command(*command)
            if isinstance(mapping, IncrByFloat):
                stored = self._client.get(self._twin)
                is_kept = _is_counted(number, Decimal(stored.decode()))
            else:
                [(_, stored)] = self._client.zrange(self._twin, 0, -1, withscores=True)
                is_kept = _is_scored(number, stored)
            if not is_kept:
                yield f"{number!r}, of which Redis makes {stored!r}"

    def _run(self, words: list[tuple[Any, ...]]) -> str:
        for command in words:
            try:
                self._client.execute_command(*command)
            except redis.ResponseError as error:
                return str(error)
        return ""

    def _state(self, key: str) -> Any:
        if self._client.type(key) == b"stream":
            return [fields for _, fields in self._client.xrange(key)]
        while 0 <= self._client.pttl(key) < _SOON_MS:
            pass  # the key is about to expire, and its twin may already have expired
        # Rounded: the twins are not changed in the same millisecond.
        return self._client.dump(key), round(self._client.pttl(key), -5)


def _texts(numbers: Any) -> list[str]:
    found: list[str] = numbers.cast(pa.string()).to_pylist()
    return found


#: The number of decimal digits that a long double keeps.
_LONG_DOUBLE: Final = Context(prec=18)


def _is_counted(number: float | Decimal, stored: Decimal) -> bool:
    """Whether a counter that started at zero still tells the number that was added. A double may lose what is below its unit."""
    if isinstance(number, float):
        return abs(Fraction(stored) - Fraction(number)) <= max(Fraction(1, 10**17), Fraction(math.ulp(number)))
    return stored == number or _LONG_DOUBLE.plus(stored) == number


def _is_scored(number: float | Decimal, stored: float) -> bool:
    """Whether a score still tells the number: an integer exactly, and a fraction by the score's shortest text."""
    if isinstance(number, float) or number == int(number):
        return stored == number
    return Decimal(repr(stored)) == number


def _compare(server: RedisService, seed: int, samples: int, states: int = 0) -> None:
    print(f"seed {seed}")  # noqa: T201 - pytest shows it if the test fails
    rng = random.Random(seed)
    outcomes = {True: 0, False: 0}
    for kind in KINDS:
        with contextlib.closing(Twins(server.url, kind, rng, states)) as twins:
            wrong = [told for _ in range(samples) for told in twins.try_rows()]
            assert not wrong, "\n".join(wrong)
            outcomes = {one: count + twins.outcomes[one] for one, count in outcomes.items()}
            assert not {"scratch", "rehearsal"} & set(left_behind(server.url, twins.sink))
    assert min(outcomes.values()) > len(KINDS)


#: Values from public reports: Lua and people take all of these for numbers.
_REPORTED: Final = (
    "007",
    "-0",
    "00",
    " 5",
    "5 ",
    "+5",
    "1e3",
    "0x10",
    "nan",
    "inf",
    "-inf",
    "1_000",
    "",
    str(_MAX),
    str(_MAX + 1),
)


@pytest.mark.parametrize("kind", [KINDS[0], KINDS[2]], ids=["INCRBY", "HINCRBY"])
def test_a_value_that_only_lua_accepts_as_an_integer_stops_the_batch_before_its_decision(
    kind: Kind, redis_server: RedisService
) -> None:
    with contextlib.closing(Twins(redis_server.url, kind, random.Random(0), 0)) as twins:
        handle = twins.prepare({"n": [1], "o": [1]})
        for number in _REPORTED:
            assert "returns ERR" in twins.refusal_of([handle], (*kind.counter, number)), number
        assert not twins.refusal_of([handle], (*kind.counter, str(_MAX - 1)))


def test_the_check_predicts_the_outcome_of_the_commands(redis_server: RedisService) -> None:
    _compare(redis_server, random.randrange(2**32), samples=1, states=12)


@pytest.mark.whole
@pytest.mark.timeout(1800)
def test_the_check_predicts_the_outcome_of_the_commands_for_many_rows(redis_server: RedisService) -> None:
    _compare(redis_server, random.randrange(2**32), samples=20)
