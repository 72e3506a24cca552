"""Build a table commit, which consists of a new snapshot, the references that move to it, and requirements.

This module does not use pyiceberg transactions. Those transactions keep only one requirement of each type, and repeat a
rejected commit without the other requirements. Two drivers could then add the same files.
"""

from __future__ import annotations

import struct
import time
import uuid
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from pyiceberg.manifest import (
    ManifestEntry,
    ManifestEntryStatus,
    construct_partition_summaries,
    write_manifest,
    write_manifest_list,
)
from pyiceberg.table.refs import MAIN_BRANCH
from pyiceberg.table.snapshots import Operation, Snapshot, Summary, UpdateMetrics, update_snapshot_summaries
from pyiceberg.table.update import (
    AddSnapshotUpdate,
    AssertCurrentSchemaId,
    AssertDefaultSpecId,
    AssertLastAssignedFieldId,
    AssertLastAssignedPartitionId,
    AssertRefSnapshotId,
    AssertTableUUID,
    SetSnapshotRefUpdate,
)

from twopc.errors import FatalError
from twopc.sinks.iceberg.definition import Definition, find
from twopc.sinks.iceberg.errors import translated
from twopc.sinks.iceberg.layout import metadata_path
from twopc.sinks.iceberg.properties import manifest_codec
from twopc.sinks.iceberg.record import summary_of, tag_of
from twopc.sinks.lake.errors import StoreError

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from pyiceberg.manifest import DataFile, ManifestFile
    from pyiceberg.partitioning import PartitionSpec
    from pyiceberg.schema import Schema
    from pyiceberg.table import Table
    from pyiceberg.table.metadata import TableMetadata
    from pyiceberg.table.update import TableRequirement, TableUpdate

    from twopc.sinks.iceberg.entries import Entry
    from twopc.sinks.lake.published import Published

_FORMAT: Final = 2
#: The maximum age of the tag. The table's retention (``history.expire.max-ref-age-ms``) must not remove the tag.
_FOREVER_MS: Final = 2**63 - 1

#: For each schema and partitioning of the table, the files that were written with it.
Additions = dict[Definition, "list[Entry]"]


@dataclass(frozen=True)
class Change:
    """The content of a commit.

    Attributes:
        control: the new control record.
        published: the outcome of the newest decision.
        additions: the files to add to the table.
    """

    control: bytes
    published: Published
    additions: Additions


@dataclass(frozen=True)
class Proposal:
    """A commit that the catalog accepts or rejects atomically.

    Attributes:
        snapshot_id: the new snapshot's id. The step later recognizes the commit by this id.
        paths: the metadata files that only this proposal uses.
    """

    snapshot_id: int
    updates: tuple[TableUpdate, ...]
    requirements: tuple[TableRequirement, ...]
    paths: tuple[str, ...]


def propose(table: Table, sink: str, tagged: int | None, change: Change) -> Proposal:
    """Write a commit's metadata files, and return the commit.

    Every commit moves the branch and the tag, even if there are no files to add and the new snapshot adds nothing. If
    only the tag moved, the commit would raise the table's sequence number, but leave the branch unchanged. If another
    writer had loaded the table before, catalogs would then reject its commit with an error that the writer does not
    retry (apache/iceberg#15001). Also, as long as a table has no snapshots, a catalog rejects requirements on tags, so
    two drivers could both create the tag.

    The parent is always the branch's snapshot. A catalog compares a snapshot's sequence number with the table's sequence
    number only if the snapshot has a parent. Without this check, a late commit could set back the table's sequence number,
    and rows appended later would count as older than existing deletes.

    Args:
        table: the table's newest metadata.
        sink: the sink name.
        tagged: the snapshot to which the sink's tag must still point; None if the tag must not exist.
        change: the content of the commit.

    Raises:
        StoreError: a metadata file could not be written.
    """
    metadata = table.metadata
    snapshot_id = metadata.new_snapshot_id()
    parent = metadata.refs.get(MAIN_BRANCH)
    parent_id = parent.snapshot_id if parent else None
    unique = uuid.uuid4()
    with translated("writing the metadata of a snapshot"):
        added = [
            _manifest(table, metadata_path(metadata, f"{unique}-m{number}.avro"), snapshot_id, written, entries)
            for number, (written, entries) in enumerate(change.additions.items())
        ]
        list_path = metadata_path(metadata, f"snap-{snapshot_id}-0-{unique}.avro")
        _write_list(table, list_path, snapshot_id, parent_id, [*added, *_kept(table, parent_id)])
    own = summary_of(sink, change.control, change.published, has_rows=bool(change.additions))
    snapshot = Snapshot.model_validate(
        {
            "snapshot-id": snapshot_id,
            "parent-snapshot-id": parent_id,
            "sequence-number": metadata.next_sequence_number(),
            # Catalogs reject a time before the table's last update.
            "timestamp-ms": max(time.time_ns() // 1_000_000, metadata.last_updated_ms),
            "manifest-list": list_path,
            "summary": _summary(table, parent_id, change.additions, own),
            "schema-id": metadata.current_schema_id,
        }
    )
    updates: list[TableUpdate] = [AddSnapshotUpdate(snapshot=snapshot)]
    requirements: list[TableRequirement] = [AssertTableUUID(uuid=metadata.table_uuid)]
    if change.additions:  # The files were compared with these definitions.
        requirements.extend(_unaltered(metadata))
    # The update replaces the complete reference, so it must repeat the branch's retention settings.
    kept = parent.model_dump(by_alias=True, exclude={"snapshot_id", "snapshot_ref_type"}) if parent else {}
    updates.append(_moved(MAIN_BRANCH, "branch", snapshot_id, kept))
    requirements.append(_unmoved(MAIN_BRANCH, parent_id))
    if parent_id is None:
        # Without a parent, no check compares sequence numbers. But each commit that raises the table's number also
        # moves a reference.
        others = (name for name in metadata.refs if name not in {MAIN_BRANCH, tag_of(sink)})
        requirements.extend(_unmoved(name, metadata.refs[name].snapshot_id) for name in others)
    updates.append(_moved(tag_of(sink), "tag", snapshot_id, {"max-ref-age-ms": _FOREVER_MS}))
    if metadata.snapshots:
        requirements.append(_unmoved(tag_of(sink), tagged))
    paths = (list_path, *(manifest.manifest_path for manifest in added))
    return Proposal(snapshot_id, tuple(updates), tuple(requirements), paths)


def require_listable(table: Table, written: Definition, entries: Sequence[Entry]) -> None:
    """Check that a manifest can store these files' partition values, because the commit after the decision depends on it.

    Raises:
        StoreError: a manifest cannot store one of the values.
    """
    schema, spec = _found(table, written)
    try:
        construct_partition_summaries(spec, schema, [entry.data_file().partition for entry in entries])
    except (struct.error, OverflowError, ValueError) as error:
        fields = ", ".join(f"{field.name}: {field.transform}" for field in spec.fields)
        advice = f"Filter out the rows with this value, or change the table's partitioning ({fields})"
        raise StoreError(
            f"a partition value of this batch does not fit its type: {error}", FatalError, advice
        ) from error


def _moved(name: str, kind: str, snapshot_id: int, retention: Mapping[str, Any]) -> SetSnapshotRefUpdate:
    return SetSnapshotRefUpdate.model_validate(
        {"ref-name": name, "type": kind, "snapshot-id": snapshot_id, **retention}
    )


def _unmoved(name: str, snapshot_id: int | None) -> AssertRefSnapshotId:
    return AssertRefSnapshotId.model_validate({"ref": name, "snapshot-id": snapshot_id})


def _unaltered(metadata: TableMetadata) -> Iterator[TableRequirement]:
    """Require that the table still has the definitions that the step has read.

    The ids of the current definitions are not enough. If the owner drops a column or partition field and adds another one, the
    new definition may get an id that maintenance has freed. But a new column or partition field also raises the table's highest
    field id.
    """
    yield AssertCurrentSchemaId.model_validate({"current-schema-id": metadata.current_schema_id})
    yield AssertLastAssignedFieldId.model_validate({"last-assigned-field-id": metadata.last_column_id})
    yield AssertDefaultSpecId.model_validate({"default-spec-id": metadata.default_spec_id})
    yield AssertLastAssignedPartitionId.model_validate({"last-assigned-partition-id": metadata.last_partition_id})


def _found(table: Table, written: Definition) -> tuple[Schema, PartitionSpec]:
    if found := find(table.metadata, written):
        return found
    raise StoreError(  # removed since the step began
        f"the batch's files depend on schema {written.schema_id} and partition spec {written.spec_id}, but one of these was "
        "removed"
    )


def _manifest(table: Table, path: str, snapshot_id: int, written: Definition, entries: Sequence[Entry]) -> ManifestFile:
    schema, spec = _found(table, written)
    with write_manifest(
        format_version=_FORMAT,
        spec=spec,
        schema=schema,
        output_file=table.io.new_output(path),
        snapshot_id=snapshot_id,
        avro_compression=manifest_codec(table.properties),
    ) as writer:
        for entry in entries:
            writer.add(
                ManifestEntry.from_args(
                    status=ManifestEntryStatus.ADDED,
                    snapshot_id=snapshot_id,
                    sequence_number=None,
                    file_sequence_number=None,
                    data_file=entry.data_file(),
                )
            )
    return writer.to_manifest_file()


def _kept(table: Table, parent_id: int | None) -> list[ManifestFile]:
    """List all manifests of the branch's snapshot, including delete manifests."""
    parent = None if parent_id is None else table.metadata.snapshot_by_id(parent_id)
    if parent is None:
        return []
    return [kept for kept in parent.manifests(table.io) if kept.has_added_files() or kept.has_existing_files()]


def _write_list(
    table: Table, path: str, snapshot_id: int, parent_id: int | None, manifests: list[ManifestFile]
) -> None:
    with write_manifest_list(
        format_version=_FORMAT,
        output_file=table.io.new_output(path),
        snapshot_id=snapshot_id,
        parent_snapshot_id=parent_id,
        sequence_number=table.metadata.next_sequence_number(),
        avro_compression=manifest_codec(table.properties),
    ) as writer:
        if manifests:
            writer.add_manifests(manifests)


def _summary(table: Table, parent_id: int | None, additions: Additions, own: Mapping[str, str]) -> Summary:
    metrics, partitions = UpdateMetrics(), set[tuple[int, str]]()
    for written, entries in additions.items():
        for entry in entries:
            file: DataFile = entry.data_file()
            metrics.add_file(file)
            partitions.add((written.spec_id, repr(entry.partition)))
    counted = {"changed-partition-count": str(len(partitions))} if partitions else {}
    parent = None if parent_id is None else table.metadata.snapshot_by_id(parent_id)
    return update_snapshot_summaries(
        Summary(operation=Operation.APPEND, **metrics.to_dict(), **counted, **own),
        None if parent is None else parent.summary,
    )
