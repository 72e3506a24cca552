"""Two runs of one query on one checkpoint. Each run reaches the REST catalog through a separate proxy."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from pyiceberg.table.update import RemoveSnapshotRefUpdate

from tests.unit.iceberg_support import TABLE, Shop
from twopc import IcebergSink
from twopc.sinks.iceberg.record import BATCH
from twopc.testing.contract import Case, numbers
from twopc.testing.contract.drivers import Query, all_rows, batch_of

if TYPE_CHECKING:
    from concurrent.futures import Future, ThreadPoolExecutor
    from pathlib import Path

    from tests.live.iceberg.proxy import CatalogProxy
    from tests.warehouse import RestWarehouse
    from twopc.coordinator import Coordinator
    from twopc.testing.contract.drivers import Engine

#: How long any single step of a schedule may take on a busy machine.
PATIENCE_S = 60
LANDED = "200"
#: The catalog's response if a requirement of the commit is not met.
REFUSED = "409 CommitFailedException"
_FOREIGN = 1_000_000


class Stage:
    """See the module.

    Attributes:
        shop: the table, which reads and changes it without a proxy.
        first: the first run's proxy.
        second: the second run's proxy.
        loser: the query through ``first``.
        successor: the query through ``second``.
        direct: the query without a proxy.
    """

    def __init__(
        self,
        warehouse: RestWarehouse,
        proxies: tuple[CatalogProxy, CatalogProxy],
        elsewhere: ThreadPoolExecutor,
        directory: Path,
        *,
        has_others: bool,
    ) -> None:
        self.shop = Shop(warehouse)
        self.first, self.second = proxies
        self.loser, self.successor = (self._query(proxy.endpoint, directory) for proxy in proxies)
        self.direct = self._query(warehouse.properties["uri"], directory)
        self._elsewhere = elsewhere
        self.has_others = has_others
        self._foreign: list[int] = []

    def begin(self) -> Coordinator:
        """Start the first run, which puts batch 0 into the table."""
        coordinator = self.loser.start()
        self.loser.continue_with(coordinator, 0)
        assert self.shop.values() == all_rows(0)
        return coordinator

    def proceed(self, coordinator: Coordinator, batch: int) -> Future[Engine]:
        """Let the first run process a batch, in a thread."""
        return self._elsewhere.submit(self.loser.continue_with, coordinator, batch)

    def succeed(self, *batches: int) -> Future[Engine]:
        """Start the second run, and process these batches, in a thread."""
        return self._elsewhere.submit(self.successor.run, *batches)

    def recover(self, batch: int) -> Coordinator:
        """Start the second run, and let it recover."""
        coordinator = self.successor.start()
        coordinator.recover(batch_of(batch))
        return coordinator

    def disturb(self) -> None:
        """If the table has other writers, one of them appends a row."""
        if self.has_others:
            self._foreign.append(_FOREIGN + len(self._foreign))
            self.shop.append(self._foreign[-1])

    def drop_main(self) -> None:
        """Remove the branch, as ``CREATE OR REPLACE TABLE`` does."""
        with self.shop.warehouse.catalog() as catalog:
            table = catalog.load_table(TABLE)
            catalog.commit_table(table, (), (RemoveSnapshotRefUpdate.model_validate({"ref-name": "main"}),))

    def visible(self) -> list[int]:
        """The query's rows that an independent reader sees. Every row of the other writers must be visible, too."""
        values = self.shop.values()
        found = [value for value in values if value < _FOREIGN]
        assert values == found + self._foreign
        return found

    def check(self, *batches: int, next_batch: int) -> None:
        """Check that the table contains these batches once, and that a new run continues after them."""
        assert self.visible() == all_rows(*batches)
        self.direct.run(next_batch)
        assert self.visible() == all_rows(*batches, next_batch)
        metadata = self.shop.table().metadata
        summaries = [snapshot.summary.additional_properties for snapshot in metadata.snapshots if snapshot.summary]
        added = Counter(summary[BATCH] for summary in summaries if BATCH in summary)
        assert set(added.values()) == {1}, f"number of snapshots by batch: {added}"
        last, highest = self.shop.sequence_numbers()
        assert last >= highest

    def files_of(self, batch: int) -> list[Path]:
        """The data files of a batch."""
        return [path for path in self.shop.files("*.parquet") if path.parent.name == str(batch)]

    def sink_of(self, uri: str) -> IcebergSink:
        """The query's sink, which reaches the catalog at this place."""
        properties = {**self.shop.warehouse.properties, "uri": uri}
        return IcebergSink(name="orders", catalog=properties, table=TABLE, timeout_ms=30_000)

    def _query(self, uri: str, directory: Path) -> Query:
        return Query(Case(self.sink_of(uri), numbers, self.shop.values), directory)
