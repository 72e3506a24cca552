"""Tables with a long history of small commits, built fast, and what their formats' own libraries do with them.

The libraries would need an hour for ten thousand appends, so each makes the first one only. The others are written directly:
for Iceberg, data files, a manifest for each, one manifest list, and the snapshots in the table's metadata; for Delta, data files
and a version for each in the log, and a checkpoint after every hundredth version. A commit and a reader read only these.
"""

from __future__ import annotations

import contextlib
import copy
import json
import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Final, Protocol

import pyarrow as pa
import pyarrow.parquet as pq
from deltalake import DeltaTable, write_deltalake
from pyiceberg.catalog import load_catalog
from pyiceberg.manifest import ManifestEntry, ManifestEntryStatus, write_manifest, write_manifest_list

from twopc.sinks.delta import DeltaSink
from twopc.sinks.iceberg import IcebergSink

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pyiceberg.table import Table

_NAME: Final = "bench.orders"
#: The sink's record in a snapshot's summary has about this many characters.
_RECORD: Final = 400
#: deltalake writes a checkpoint after this number of versions.
_CHECKPOINTS: Final = 100
_FIELDS: Final[list[Any]] = [pa.field("id", pa.int64()), pa.field("note", pa.string())]
SCHEMA: Final = pa.schema(_FIELDS)


def rows_of(count: int, *, note: str = "x" * 20) -> pa.Table:
    """Make some rows."""
    return pa.table({"id": pa.array(range(count), pa.int64()), "note": [note] * count}, schema=SCHEMA)


class SmallFiles(Protocol):
    """A table whose rows came in many commits, one file each.

    Attributes:
        title: the format's name.
        commit: what the format calls a commit.
        library: the name of the format's own library.
        sink: a sink that writes to the table.
    """

    title: ClassVar[str]
    commit: ClassVar[str]
    library: ClassVar[str]
    sink: Any

    def __init__(self, directory: Path, rows: int, files: int) -> None:
        """Create the table with this number of rows in this number of files."""

    def append(self, rows: pa.Table) -> None:
        """Append rows with the library."""

    def read(self) -> pa.Table:
        """Read all rows with the library."""

    def commits_made(self) -> int:
        """Count the commits that the library sees, without the table's creation."""


class SmallIcebergFiles:
    """See :class:`SmallFiles`. The table is in a SQL catalog."""

    title: ClassVar[str] = "Iceberg"
    commit: ClassVar[str] = "snapshot"
    library: ClassVar[str] = "pyiceberg"

    def __init__(self, directory: Path, rows: int, files: int) -> None:
        self._properties = {"type": "sql", "uri": f"sqlite:///{directory}/catalog.db", "warehouse": directory.as_uri()}
        self.sink = IcebergSink(name="orders", catalog={"name": "bench", **self._properties}, table=_NAME)
        with self._catalog() as catalog:
            catalog.create_namespace(_NAME.partition(".")[0])
            table = catalog.create_table(_NAME, SCHEMA)
            table.append(rows_of(rows // files))
            _repeat(catalog.load_table(_NAME), directory, rows_of(rows // files), files)

    def append(self, rows: pa.Table) -> None:
        """See :class:`SmallFiles`."""
        with self._catalog() as catalog:
            catalog.load_table(_NAME).append(rows)

    def read(self) -> pa.Table:
        """See :class:`SmallFiles`."""
        with self._catalog() as catalog:
            found: pa.Table = catalog.load_table(_NAME).scan().to_arrow()
            return found

    def commits_made(self) -> int:
        """See :class:`SmallFiles`."""
        with self._catalog() as catalog:
            return len(catalog.load_table(_NAME).metadata.snapshots)

    def _catalog(self) -> contextlib.closing[Any]:
        return contextlib.closing(load_catalog("bench", **self._properties))


class SmallDeltaFiles:
    """See :class:`SmallFiles`."""

    title: ClassVar[str] = "Delta"
    commit: ClassVar[str] = "version"
    library: ClassVar[str] = "deltalake"

    def __init__(self, directory: Path, rows: int, files: int) -> None:
        self._path = directory / "orders"
        self.sink = DeltaSink(name="orders", table_uri=str(self._path))
        DeltaTable.create(str(self._path), SCHEMA)
        self.append(rows_of(rows // files))
        log = self._path / "_delta_log"
        [source] = self._path.glob("*.parquet")
        first = (log / f"{1:020}.json").read_text()
        for number in range(2, files + 1):
            name = f"{number}-{source.name}"
            shutil.copyfile(source, self._path / name)
            (log / f"{number:020}.json").write_text(first.replace(source.name, name))
            if number == files - files % _CHECKPOINTS:
                DeltaTable(str(self._path)).create_checkpoint()

    def append(self, rows: pa.Table) -> None:
        """See :class:`SmallFiles`."""
        write_deltalake(str(self._path), rows, mode="append")

    def read(self) -> pa.Table:
        """See :class:`SmallFiles`."""
        return DeltaTable(str(self._path)).to_pyarrow_table()

    def commits_made(self) -> int:
        """See :class:`SmallFiles`."""
        return DeltaTable(str(self._path)).version()


def _repeat(table: Table, directory: Path, rows: pa.Table, files: int) -> None:
    """Make the table's only snapshot the last one of many that have added a file each."""
    snapshot = table.current_snapshot()
    assert snapshot is not None
    [manifest] = snapshot.manifests(table.io)
    [entry] = manifest.fetch_manifest_entry(table.io)
    source = entry.data_file.file_path.removeprefix("file://")
    schema = pq.read_schema(source)
    manifests = []
    for number in range(files):
        path = f"{source}.{number}.parquet"
        pq.write_table(rows.cast(schema), path, compression="zstd")
        data_file = copy.copy(entry.data_file)
        data_file[1] = f"file://{path}"  # the place of file_path in the format
        writer = write_manifest(
            2,
            table.spec(),
            table.schema(),
            table.io.new_output(f"{directory.as_uri()}/m{number}.avro"),
            snapshot.snapshot_id,
            "deflate",
        )
        with writer:
            added = ManifestEntry.from_args(
                status=ManifestEntryStatus.ADDED,
                snapshot_id=snapshot.snapshot_id,
                sequence_number=1,
                file_sequence_number=1,
                data_file=data_file,
            )
            writer.add(added)
        manifests.append(writer.to_manifest_file())
    listed = table.io.new_output(f"{directory.as_uri()}/manifests.avro")
    with write_manifest_list(2, listed, snapshot.snapshot_id, None, 1, "deflate") as lists:
        lists.add_manifests(manifests)
    _edit(table, f"{directory.as_uri()}/manifests.avro", files)


def _edit(table: Table, manifest_list: str, snapshots: int) -> None:
    """Write the snapshots into the newest metadata file."""
    file = Path(table.metadata_location.removeprefix("file://"))
    content = json.loads(file.read_text())
    [last] = content["snapshots"]
    last["manifest-list"] = manifest_list
    earlier = list(_earlier(last, snapshots - 1))
    content["snapshots"] = [*earlier, last]
    content["snapshot-log"] = [
        {"snapshot-id": one["snapshot-id"], "timestamp-ms": one["timestamp-ms"]} for one in content["snapshots"]
    ]
    file.write_text(json.dumps(content))


def _earlier(last: dict[str, Any], count: int) -> Iterator[dict[str, Any]]:
    summary = {**last["summary"], "record": "x" * _RECORD}
    for number in range(count):
        yield {
            **last,
            "summary": summary,
            "snapshot-id": number + 1,
            "timestamp-ms": last["timestamp-ms"] - count + number,
        }
