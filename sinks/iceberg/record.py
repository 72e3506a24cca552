"""Read and write the control record and the newest decision's outcome, in the summary of the sink's tagged snapshot.

The tag moves only by compare-and-set. The tag and the branch move together. Every commit
therefore includes its own evidence. As long as the tag exists, snapshot expiry does not remove this evidence.
"""

from __future__ import annotations

import contextlib
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import msgspec

from twopc.errors import ConfigurationError
from twopc.sinks.lake.errors import StoreError
from twopc.sinks.lake.published import Published

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pyiceberg.table.metadata import TableMetadata

#: Keys in a snapshot's summary.
SINK: Final = "twopc.sink"
CONTROL: Final = "twopc.control"
PUBLISHED: Final = "twopc.published"
BATCH: Final = "twopc.batch"
_PREFIX: Final = "twopc-"


@dataclass(frozen=True)
class Tagged:
    """The snapshot to which the sink's tag points."""

    snapshot_id: int
    control: bytes
    published: Published


def tag_of(sink: str) -> str:
    """Return the name of the sink's tag."""
    return f"{_PREFIX}{sink}"


def summary_of(sink: str, control: bytes, published: Published, *, has_rows: bool) -> dict[str, str]:
    """Create the sink's entries for a snapshot's summary. The entries contain the batch only if the snapshot adds rows."""
    record = {SINK: sink, CONTROL: control.decode(), PUBLISHED: msgspec.json.encode(published).decode()}
    return {BATCH: str(published.batch), **record} if has_rows else record


def read_tag(metadata: TableMetadata, sink: str) -> Tagged | None:
    """Read the sink's tag. Return None if the sink has never written to this table.

    Raises:
        StoreError: the tag was deleted or moved to another snapshot.
    """
    tag = tag_of(sink)
    reference = metadata.refs.get(tag)
    if reference is None:
        if left := _newest_of(metadata, sink):
            raise StoreError(
                f"the tag {tag!r} is missing, but this sink wrote snapshot {left}, which records "
                f"{_newest_batch(metadata, left)}. The tag, which records the committed batches, was deleted",
                ConfigurationError,
                f"To continue the same query, recreate the tag: ALTER TABLE … CREATE TAG `{tag}` AS OF VERSION {left}. For a new "
                "query, do not recreate the tag, and use another sink name",
            )
        return None
    found = metadata.snapshot_by_id(reference.snapshot_id)
    summary = summary_of_snapshot(found)
    if found is None or summary.get(SINK) != sink or CONTROL not in summary:
        left = _newest_of(metadata, sink)
        raise StoreError(
            f"the tag {tag!r} points to snapshot {reference.snapshot_id}, which this sink did not write. The tag was moved",
            ConfigurationError,
            f"Move the tag back: ALTER TABLE … REPLACE TAG `{tag}` AS OF VERSION {left}"
            if left
            else "Use another sink name",
        )
    newest = _newest_of(metadata, sink)
    if newest != found.snapshot_id:
        raise StoreError(
            f"the tag {tag!r} points to snapshot {found.snapshot_id}, but this sink also wrote the newer snapshot {newest}. "
            "The tag was moved back",
            ConfigurationError,
            f"Move the tag forward: ALTER TABLE … REPLACE TAG `{tag}` AS OF VERSION {newest}",
        )
    try:
        published = msgspec.json.decode(summary.get(PUBLISHED, "{}"), type=Published)
    except msgspec.DecodeError as error:
        raise StoreError(
            f"snapshot {found.snapshot_id} with the tag {tag!r} contains a record that this version of the sink cannot read "
            f"({error})",
            ConfigurationError,
            "Use the version that wrote the record",
        ) from error
    return Tagged(found.snapshot_id, summary[CONTROL].encode(), published)


def _newest_of(metadata: TableMetadata, sink: str) -> int | None:
    own = [found for found in metadata.snapshots if summary_of_snapshot(found).get(SINK) == sink]
    return max(own, key=lambda found: found.sequence_number or 0).snapshot_id if own else None


def _newest_batch(metadata: TableMetadata, snapshot_id: int) -> str:
    summary = summary_of_snapshot(metadata.snapshot_by_id(snapshot_id))
    with contextlib.suppress(msgspec.DecodeError):
        batch = msgspec.json.decode(summary.get(PUBLISHED, "{}"), type=Published).batch
        return "no batch" if batch < 0 else f"batch {batch} as the newest one"
    return "an unknown batch"


def summary_of_snapshot(snapshot: Any) -> Mapping[str, str]:
    """Return the application's entries in a snapshot's summary.

    The result is empty if there is no snapshot or no summary.
    """
    return {} if snapshot is None or snapshot.summary is None else snapshot.summary.additional_properties
