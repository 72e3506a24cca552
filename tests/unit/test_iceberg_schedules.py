"""Random schedules of drivers, faults and users: each decided batch is in the table once, and no other row of the sink is.

``TWOPC_SEED`` repeats a schedule; a failure shows its seed and its steps.
"""

from __future__ import annotations

import contextlib
import datetime as dt
import itertools
import os
import random
import warnings
from collections import Counter
from typing import TYPE_CHECKING, Any, Final

import pytest
from pyiceberg.exceptions import CommitFailedException, NotInstalledError, ValidationException
from pyiceberg.transforms import BucketTransform, IdentityTransform, TruncateTransform
from pyiceberg.types import StringType

from tests.faulty_catalog import some_commits, undisturbed
from tests.unit.iceberg_support import TAG, Shop
from tests.unit.lake_support import lost_answer, lost_request, prepare
from twopc import FencedError, RetriableError
from twopc.attempt import Evidence
from twopc.testing.contract.drivers import Driver, close_opened

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tests.faulty_catalog import Send
    from twopc.sinks.iceberg.handle import IcebergHandle

_SCHEDULES: Final = int(os.environ.get("TWOPC_SCHEDULES", "3"))
_STEPS: Final = 14
_FOREIGN: Final = 1_000_000


class Schedule:
    """One table, a query's drivers one after the other, and whoever else uses the table.

    Attributes:
        steps: what has happened, for the message of a failure.
    """

    def __init__(self, shop: Shop, seed: int) -> None:
        self._shop = shop
        self._draw = random.Random(seed)
        self._values = itertools.count()
        self._foreign = itertools.count(_FOREIGN)
        self._batch = 0
        self._attempts = itertools.count(1)
        self._late: list[Send] = []
        self._decided: tuple[list[IcebergHandle], dict[str, Any]] | None = None
        self._is_proven = True
        self._expected = Counter[int]()  # the sink's rows that are or will be in the table
        self._pending = Counter[int]()  # those of the expected rows that need not be in the table yet
        self.steps: list[str] = []
        self._driver = Driver(shop.sink)

    def run(self) -> None:
        for _ in range(_STEPS):
            step = self._draw.choice((self.batch, self.batch, self.batch, self.restart, self.user, self.late))
            step()
            self.check()
        while self._late:
            self.late()
        for _ in range(2):
            self.restart(is_calm=True)
            self.check()
        assert self._is_proven
        number = self._batch
        self.batch(is_calm=True)
        assert (self._batch, self._is_proven) == (number + 1, True)
        self.check()

    def batch(self, *, is_calm: bool = False) -> None:
        """An attempt at the next batch; it is decided if every vote is confirmed."""
        if not self._is_proven:
            self.commit(is_calm=is_calm)
            return
        try:
            scan_start = self._driver.begin()
        except FencedError:
            self.steps.append("fenced before a batch")
            self.restart(is_calm=True)
            return
        values = [
            [next(self._values) for _ in range(self._draw.randrange(1, 4))] for _ in range(self._draw.randrange(1, 4))
        ]
        attempt = next(self._attempts)
        handles = [prepare(self._driver, self._shop.sink, *some, batch=self._batch, attempt=attempt) for some in values]
        if not is_calm and self._draw.random() < 0.3:
            self.user()
        try:
            self._driver.committer.confirm(handles, 0)
        except RetriableError as error:
            self.steps.append(f"not decided: {error}")
            return
        if not is_calm and self._draw.random() < 0.1:
            self.steps.append("not decided: crash")
            self.restart()
            return
        self._decided, self._is_proven = (handles, scan_start), False
        self._pending = Counter(itertools.chain(*values))
        self._expected += self._pending
        self.steps.append(f"decided batch {self._batch}: {values}")
        self._batch += 1
        if not is_calm and self._draw.random() < 0.3:
            self.user()
        if is_calm or self._draw.random() < 0.8:
            self.commit(is_calm=is_calm)

    def commit(self, *, is_calm: bool = False) -> None:
        assert self._decided is not None
        handles, scan_start = self._decided
        with self.faults(is_calm=is_calm):
            try:
                found = self._driver.committer.commit(handles, scan_start)
            except FencedError:
                self.steps.append("fenced within a commit")
                self.restart(is_calm=True)
                return
        self.proven(found)
        if self._is_proven:
            self._driver.committer.recover_and_abort(handles)
            self._driver.committer.forget(scan_start)

    def restart(self, *, is_calm: bool = False) -> None:
        """Start a new driver. The previous one may still be alive."""
        with self.faults(is_calm=is_calm):
            try:
                driver = Driver(self._shop.sink)
            except FencedError:
                self.steps.append("fenced within a start")
                with undisturbed():
                    driver = Driver(self._shop.sink)
            handles, scan_start = self._decided or ([], {})
            assert not driver.committer.has_newer_decision(scan_start)
            assert not driver.committer.lacks_decisions(scan_start)
            try:
                found = driver.committer.initialize_state(handles, scan_start)
            except FencedError:
                self.steps.append("fenced within a recovery")
                found = dict.fromkeys(handles, Evidence.UNKNOWN)
        self.steps.append(f"restarted as driver {driver.driver_epoch}")
        former, self._driver = self._driver, driver
        self.proven(found)
        if handles and self._draw.random() < 0.5:
            with pytest.raises(FencedError):
                former.committer.commit(handles, scan_start)
        if driver.committer.blockers() == [] and self._draw.random() < 0.5:
            former.committer.recover_and_abort(handles)
            former.committer.abort(handles)

    def proven(self, found: Any) -> None:
        assert Evidence.ABORTED not in found.values()
        if all(evidence is Evidence.COMMITTED for evidence in found.values()):
            self._is_proven, self._pending = True, Counter()

    @contextlib.contextmanager
    def faults(self, *, is_calm: bool) -> Iterator[None]:
        chosen = (
            []
            if is_calm
            else self._draw.choices((lost_answer, lost_request, self.delayed, self.raced), k=self._draw.randrange(4))
        )
        self.steps.append(f"faults: {[fault.__name__ for fault in chosen]}")
        with some_commits(*chosen):
            yield

    def delayed(self, send: Send) -> None:
        self._late.append(send)
        raise ConnectionError("no answer")

    def raced(self, send: Send) -> Any:
        """Another writer is faster, or another driver, or the request waits for both."""
        with undisturbed():
            self._draw.choice((self.user, self.user, self.late, self.other_driver))()
        return send()

    def other_driver(self) -> None:
        """A driver of the same query that dies after its start."""
        self.steps.append(f"another driver: {Driver(self._shop.sink).driver_epoch}")

    def late(self) -> None:
        if self._late:
            send = self._late.pop(self._draw.randrange(len(self._late)))
            try:
                send()
            except Exception as error:  # noqa: BLE001 - any refusal will do
                self.steps.append(f"a late request is refused: {error}"[:150])
            else:
                self.steps.append("a late request took effect")

    def user(self) -> None:
        change = self._draw.choice(
            (
                self.append,
                self.append,
                self.delete,
                self.expire,
                self.roll_back,
                self.set_property,
                self.evolve,
                self.repartition,
                self.other_sink,
            )
        )
        before = self.visible()
        refused = ""
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                change()
        except (ValueError, CommitFailedException, NotInstalledError, ValidationException) as error:
            refused = f", refused: {error}"[:100]
        self.steps.append(f"user: {change.__name__}{refused}")
        if change == self.roll_back:
            gone = before - self.visible()
            self._expected -= gone

    def append(self) -> None:
        value = next(self._foreign)
        rows = self._shop.table().schema().as_arrow().empty_table()
        rows = rows.from_pylist([{rows.schema.names[0]: value}], schema=rows.schema)
        self._shop.change(lambda table: table.append(rows))

    def delete(self) -> None:
        self._shop.change(lambda table: table.delete(f"value >= {_FOREIGN}"))

    def expire(self) -> None:
        later = dt.datetime.now(dt.timezone.utc) + dt.timedelta(days=1)
        self._shop.change(lambda table: table.maintenance.expire_snapshots().older_than(later).commit())

    def roll_back(self) -> None:
        metadata = self._shop.table().metadata
        older = [
            entry.snapshot_id for entry in metadata.snapshot_log[:-1] if metadata.snapshot_by_id(entry.snapshot_id)
        ]
        current = metadata.refs["main"].snapshot_id
        ancestors = set()
        found = metadata.snapshot_by_id(current)
        while found is not None:
            ancestors.add(found.snapshot_id)
            found = metadata.snapshot_by_id(found.parent_snapshot_id) if found.parent_snapshot_id else None
        older = [one for one in older if one in ancestors - {current}]
        if older:
            self._shop.change(lambda table: table.manage_snapshots().rollback_to_snapshot(older[-1]).commit())

    def set_property(self) -> None:
        name, value = self._draw.choice(
            (
                ("history.expire.max-ref-age-ms", "1"),
                ("history.expire.max-snapshot-age-ms", "1"),
                ("write.target-file-size-bytes", self._draw.choice(("1", "1000000"))),
                ("write.metadata.metrics.default", self._draw.choice(("none", "full", "counts"))),
                ("write.metadata.delete-after-commit.enabled", "true"),
                ("write.metadata.previous-versions-max", "1"),
            )
        )

        def change(table: Any) -> None:
            with table.transaction() as transaction:
                transaction.set_properties({name: value})

        self._shop.change(change)

    def evolve(self) -> None:
        def change(table: Any) -> None:
            names = [field.name for field in table.schema().fields]
            with table.update_schema() as update:
                if "note" in names:
                    update.delete_column("note") if self._draw.random() < 0.5 else update.rename_column("note", "Note")
                else:
                    update.delete_column("Note") if "Note" in names else None
                    update.add_column("note", StringType())

        self._shop.change(change)

    def repartition(self) -> None:
        def change(table: Any) -> None:
            with table.update_spec() as update:
                names = [field.name for field in table.spec().fields]
                if "p" in names:
                    update.remove_field("p")
                else:
                    update.add_field(
                        "value", self._draw.choice((BucketTransform(4), TruncateTransform(3), IdentityTransform())), "p"
                    )

        self._shop.change(change)

    def other_sink(self) -> None:
        sink = self._shop.named("others")
        with undisturbed():
            driver = Driver(sink)
            scan_start = driver.begin()
            driver.commit([prepare(driver, sink, next(self._foreign))], scan_start)
            driver.committer.recover_and_abort([])

    def visible(self) -> Counter[int]:
        return Counter(value for value in self._shop.values() if value < _FOREIGN)

    def check(self) -> None:
        found = self.visible()
        assert found - self._expected == Counter(), "a row is visible twice, or was never decided"
        assert self._expected - found - self._pending == Counter(), "a decided row is missing"
        assert self._shop.table().metadata.refs[TAG].max_ref_age_ms == 2**63 - 1
        last, highest = self._shop.sequence_numbers()
        assert last >= highest


def _seeds() -> list[int]:
    first = os.environ.get("TWOPC_SEED")
    return [int(first)] if first else [random.SystemRandom().randrange(1 << 30) for _ in range(_SCHEDULES)]


def test_each_decided_batch_is_in_the_table_once(tmp_path: Path) -> None:
    for seed in _seeds():
        directory = tmp_path / str(seed)
        directory.mkdir()
        schedule = Schedule(Shop(directory), seed)
        try:
            schedule.run()
        except BaseException as error:
            raise AssertionError(f"TWOPC_SEED={seed}: {error!r}\n" + "\n".join(schedule.steps)) from error
        finally:
            close_opened()
