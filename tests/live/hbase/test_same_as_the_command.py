"""The check before the decision says yes if and only if HBase's own calls succeed, over generated cells and rows.

Generated rows are staged for everything that their row in HBase may hold. The bare calls run on twins of the row: if one fails,
the sink must refuse the batch before its decision; if none does, it must not. The calls run in several orders, because the sink
promises none for increments. HBase has no error for an overflow, so a call after which a counter is not the sum counts as
failed. In two places, the sink refuses more by choice: it merges the rows of a chunk into one call, so their sum must be a 64-bit
number; and it stages a row in one cell, so all values of a row must fit into one cell. A confirmed batch is also applied.
"""

from __future__ import annotations

import contextlib
import itertools
import random
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import pytest

from tests.live.hbase.support import FAMILY, Store, sink_of, unique
from tests.live.one_task import batch
from twopc.attempt import Evidence
from twopc.errors import BadRecordError
from twopc.sinks.hbase.mappings import COUNTER, INT64, Append, Delete, Increment, Put
from twopc.sinks.hbase.messages import client_pb
from twopc.sinks.hbase.row_ops import DURABLE, Op, cells_of, look, put
from twopc.sinks.hbase.staging import families
from twopc.testing.contract.drivers import Driver

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from tests.live.hbase.services import HBaseService
    from twopc.sinks.hbase.mappings import Mapping
    from twopc.sinks.hbase.row_ops import Column

_MAX: Final = 2**63 - 1
_STEPS: Final = (0, 1, -1, 7, 2**31, 2**53 + 1, 2**62, -(2**62), _MAX, -_MAX, -_MAX - 1)
_COUNTERS: Final = sorted(
    {sign * edge + off for edge in (0, 2**62, 2**63) for sign in (1, -1) for off in (-2, -1, 0, 1)}
)
#: Values that some readers mistake for numbers.
_NO_COUNTERS: Final = (b"", b"7", b"\0" * 4, b"\0" * 7, b"\0" * 9, b"\0" * 16, b"1234567", b"123456789", b"text")
_HELD_NUMBERS: Final = (
    None,
    *(COUNTER.pack(number) for number in _COUNTERS if number in INT64),
    *_NO_COUNTERS,
)
#: The limit of this module's table (``hbase.server.keyvalue.maxsize``). Larger cells would only slow the tests down.
_LIMIT: Final = 2_000
#: The size that HBase counts for a cell with an empty value in one of this module's rows.
_WITHOUT_VALUE: Final = 24 + len(f"{unique()}:000000") + len(b"dv")
_HELD_TEXTS: Final = (
    None,
    *(b"x" * size for size in (0, 1, _LIMIT // 4, _LIMIT // 2)),
    *(b"x" * (_LIMIT - _WITHOUT_VALUE - left) for left in (0, 1, 2, 5, 6, 7, 10, 11, 12, 300, 301, 600)),
)
#: The most bytes that a row takes up in its chunk, not counting its values. No sum of the values below is this close to
#: the limit.
_MARGIN: Final = 190
_TEXTS: Final = tuple(b"y" * size for size in (0, 1, 5, 6, 300, _LIMIT // 4, _LIMIT - 300, _LIMIT + 1))
_ROWS: Final = 2  # in a chunk
_CELLS: Final[tuple[Column, ...]] = ((FAMILY, b"v"), (FAMILY, b"w"))
Held = tuple["bytes | None", ...]
"""What a row holds in these cells."""


@dataclass(frozen=True)
class Kind:
    """One mapping: how its rows are made, and which values its cells may hold."""

    mapping: Mapping
    columns: Callable[[random.Random, int], dict[str, Any]]
    held: tuple[bytes | None, ...]


def _ints(rng: random.Random, rows: int) -> dict[str, Any]:
    near = rng.choice((_STEPS, range(-3, 4)))
    return {name: [rng.choice(near) for _ in range(rows)] for name in ("n", "o")}


def _texts(rng: random.Random, rows: int) -> dict[str, Any]:
    short = _TEXTS[: rng.randint(2, len(_TEXTS))]
    return {name: [rng.choice(short) for _ in range(rows)] for name in ("n", "o")}


_BOTH: Final = {"d:v": "n", "d:w": "o"}
KINDS: Final = (
    Kind(Increment("{k}", {"d:v": "n"}), _ints, _HELD_NUMBERS),
    Kind(Increment("{k}", _BOTH), _ints, _HELD_NUMBERS),
    Kind(Append("{k}", {"d:v": "n"}), _texts, _HELD_TEXTS),
    Kind(Append("{k}", _BOTH), _texts, _HELD_TEXTS),
    Kind(Put("{k}", {"d:v": "n"}), _texts, _HELD_TEXTS),
    Kind(Put("{k}", _BOTH), _texts, _HELD_TEXTS),
    Kind(Delete("{k}"), _texts, _HELD_TEXTS),
    Kind(Delete("{k}", ["d:v"]), _texts, _HELD_TEXTS),
)


#: The values of one call, one for each cell of the mapping: a number to add, or text.
Step = tuple[Any, ...]


class Twins:
    """A row that the sink changes, and twins of it that bare calls change, in one table."""

    def __init__(self, store: Store, table: str, kind: Kind, rng: random.Random, states: int) -> None:
        self._client, self._table = store.client, table
        self._kind, self._rng, self._sample = kind, rng, states
        self._adds = isinstance(kind.mapping, Increment)
        self._prefix, self._names = unique(), itertools.count()
        sizes = {"chunk_rows": _ROWS, "max_cell_bytes": _LIMIT, "staging_table": f"{table}-own"}
        self.sink = sink_of(store, kind.mapping, table=table, **sizes)
        self._driver = Driver(self.sink)
        self._scan_start = self._driver.begin()
        self.outcomes = {True: 0, False: 0}
        self._is_applied = False

    def close(self) -> None:
        self._driver.close()

    def try_rows(self, held: Held) -> list[str]:
        """Generate rows for a row that holds these cells, and compare. Return the difference, if any."""
        key = self._row(held)
        tasks = [self._kind.columns(self._rng, self._rng.randint(1, 4)) for _ in range(self._rng.randint(1, 2))]
        steps = [step for columns in tasks for step in self._steps(columns)]
        handles: list[Any] = []
        refusal = ""
        try:
            for number, columns in enumerate(tasks):
                rows = batch(k=[key] * len(columns["n"]), **columns)
                handles.append(self._driver.prepare(rows, partition=number))
            self._driver.committer.confirm(handles, 0)
        except BadRecordError as error:
            refusal = str(error)
        assert self._cells(key) == _present(held)
        failed = self._failed(held, steps)
        self.outcomes[not failed] += 1
        wrong = ""
        if bool(failed) != bool(refusal):
            wrong = f"calls {failed or 'succeed'}, sink {refusal or 'confirms'}"
        elif not refusal and not self._is_applied:
            self._is_applied = (
                True  # once is enough: whether rows can be applied does not depend on the number of batches
            )
            wrong = self._applied(handles, key, held, steps)
        self._driver.committer.abort(handles)
        said = f"{self._kind.mapping}, cells holding {_short(held)}, {[_short(step) for step in steps]}: {wrong}"
        return [said] if wrong else []

    def states(self) -> list[Held]:
        """What a row may hold in its two cells."""
        held = self._kind.held
        chosen = self._rng.sample(held, min(self._sample, len(held))) if self._sample else held
        return [(value, self._rng.choice(held)) for value in chosen]

    def _applied(self, handles: list[Any], key: bytes, held: Held, steps: list[Step]) -> str:
        """A confirmed batch can be applied, and has the effect of the calls."""
        found = set(self._driver.committer.commit(handles, self._scan_start).values())
        twin = self._row(held)
        for step in steps:
            assert self._client.execute([self._call(twin, step)]) == [True]
        cells = self._cells(key), self._cells(twin)
        if found == {Evidence.COMMITTED} and cells[0] == cells[1]:
            return ""
        return f"{found}, {self._driver.committer.blockers()}, {cells}"

    def _failed(self, held: Held, steps: list[Step]) -> str:
        """What a call reports, in any of several orders; empty if all calls succeed."""
        if self._adds and any(number not in INT64 for step in steps for number in step):
            return "the sum of a chunk is no 64-bit number"
        if not self._adds and any(sum(map(len, step)) > _LIMIT - _MARGIN for step in steps):
            return "a row does not fit into one cell"
        return next(filter(None, (self._failed_in(order, held) for order in self._orders(steps))), "")

    def _failed_in(self, order: list[Step], held: Held) -> str:
        twin = self._row(held)
        for number, step in enumerate(order):
            [answer] = self._client.execute([self._call(twin, step)])
            if isinstance(answer, Exception):
                return str(answer)
            if self._adds and self._cells(twin) != self._sums(held, order[: number + 1]):
                return f"the sum is wrong: {self._cells(twin)}"
        return ""

    def _sums(self, held: Held, steps: list[Step]) -> dict[Column, bytes]:
        """The cells' values after the steps. There are none if a counter would overflow."""
        cells = _present(held)
        for place, *numbers in zip(self._kind.mapping.places, *steps, strict=True):
            total = sum(numbers) + (COUNTER.unpack(cells[place])[0] if place in cells else 0)
            if total not in INT64:
                return {}
            cells[place] = COUNTER.pack(total)
        return cells

    def _orders(self, steps: list[Step]) -> list[list[Step]]:
        """Orders in which each counter falls as far as it can, or rises as far as it can, before it returns."""
        if not self._adds:
            return [steps]
        places = range(len(self._kind.mapping.places))
        return [sorted(steps, key=lambda step: sign * step[place]) for place in places for sign in (1, -1)][
            : None if len(steps) > 1 else 1
        ]

    def _steps(self, columns: dict[str, Any]) -> Iterator[Step]:
        """The calls for a task's rows, one for each chunk."""
        if isinstance(self._kind.mapping, Delete):
            cells: list[Any] = []
        else:
            cells = [columns[name] for name in self._kind.mapping.cells.values()]  # type: ignore[attr-defined]
        for start in range(0, len(columns["n"]), _ROWS):
            yield tuple(self._joined(values[start : start + _ROWS]) for values in cells)

    def _joined(self, values: list[Any]) -> Any:
        if isinstance(self._kind.mapping, Put):
            return values[-1]
        return sum(values) if self._adds else b"".join(values)

    def _call(self, row: bytes, step: Step) -> Op:
        """The operation as any client would write it."""
        kind = getattr(client_pb.MutationProto, self._kind.mapping.operation)
        mutation = client_pb.MutationProto(row=row, mutate_type=kind, durability=DURABLE)
        is_deletion = isinstance(self._kind.mapping, Delete)
        every_version = client_pb.MutationProto.DELETE_MULTIPLE_VERSIONS if is_deletion else None
        for place, (family, qualifier) in enumerate(self._kind.mapping.places):
            value = None if is_deletion else COUNTER.pack(step[place]) if self._adds else step[place]
            column = mutation.column_value.add(family=family)
            column.qualifier_value.add(qualifier=qualifier, value=value, delete_type=every_version)
        return Op(self._table, row, mutations=(mutation,))

    def _row(self, held: Held) -> bytes:
        """A new row that holds these cells."""
        row = f"{self._prefix}:{next(self._names):06d}".encode()
        if cells := _present(held):
            assert self._client.execute([Op(self._table, row, mutations=(put(row, cells, at_ms=1),))]) == [True]
        return row

    def _cells(self, row: bytes) -> dict[Column, bytes]:
        found = cells_of(self._client.execute_one(look(self._table, row, _CELLS)))
        return {place: cell.value for place, cell in found.items()}


def _present(held: Held) -> dict[Column, bytes]:
    return {place: value for place, value in zip(_CELLS, held, strict=True) if value is not None}


def _short(values: tuple[Any, ...]) -> list[Any]:
    """Values, or their lengths if they are long."""
    return [len(value) if isinstance(value, bytes) and len(value) > COUNTER.size * 2 else value for value in values]


@pytest.fixture(scope="module")
def small_cells(hbase_server: HBaseService) -> Iterator[tuple[Store, str]]:
    """A table and a sink's own table with a small limit for the size of a cell, as if the cluster had this limit."""
    store = Store(hbase_server.zookeeper)
    table = f"small-{unique()}"
    store.create_table(table, max_cell_bytes=_LIMIT)
    store.create_table(f"{table}-own", max_cell_bytes=_LIMIT, families=families())
    yield store, table
    store.close()


def _compare(place: tuple[Store, str], seed: int, samples: int, states: int = 0) -> None:
    print(f"seed {seed}")  # noqa: T201 - pytest shows it if the test fails
    rng = random.Random(seed)
    outcomes = {True: 0, False: 0}
    for kind in KINDS:
        with contextlib.closing(Twins(*place, kind, rng, states)) as twins:
            wrong = [told for _ in range(samples) for held in twins.states() for told in twins.try_rows(held)]
            assert not wrong, "\n".join(wrong)
            outcomes = {one: count + twins.outcomes[one] for one, count in outcomes.items()}
    assert min(outcomes.values()) > 0


def test_rows_are_staged_in_as_many_cells_as_their_sizes_need(small_cells: tuple[Store, str]) -> None:
    """Each chunk fits into a cell together with the cell's key, for rows of any size."""
    store, table = small_cells
    mapping = Put(f"{unique()}:{{k}}", {"d:v": "n"})
    own = f"{table}-own"
    with contextlib.closing(
        Driver(sink_of(store, mapping, table=table, staging_table=own, max_cell_bytes=_LIMIT))
    ) as driver:
        for size in (0, 100, 180, 230, 400, 450):
            for rows in (1, 3, 5, 9, 19):
                driver.prepare(batch(k=list(range(rows)), n=[b"y" * size] * rows))


def test_the_check_predicts_the_outcome_of_the_calls(small_cells: tuple[Store, str]) -> None:
    _compare(small_cells, random.randrange(2**32), samples=1, states=12)


@pytest.mark.whole
@pytest.mark.timeout(1800)
def test_the_check_predicts_the_outcome_of_the_calls_for_many_rows(small_cells: tuple[Store, str]) -> None:
    _compare(small_cells, random.randrange(2**32), samples=40)
