"""Broken variants of the Iceberg sink."""

from __future__ import annotations

from typing import Final

from tests.planted.bug import Bug, Edit, one_edit

_COMMIT: Final = "tests/unit/test_iceberg_commit.py"
_SWEEP: Final = "tests/unit/test_iceberg_sweep.py"
_TABLES: Final = "tests/unit/test_iceberg_tables.py"
_VALUES: Final = "tests/unit/test_iceberg_values.py"
_PARTITIONS: Final = "tests/unit/test_iceberg_partitions.py"
_RESTORED: Final = "tests/unit/test_iceberg_restored.py"

ICEBERG_BUGS: Final[tuple[Bug, ...]] = (
    one_edit(
        "Iceberg: a commit goes through pyiceberg's own transaction",
        0,
        "sinks/iceberg/store.py",
        "            self._opened().commit_table(table, requirements, updates)\n",
        "            new = updates[0].snapshot\n"
        "            own = {key: value for key, value in new.summary.additional_properties.items() if key.startswith('twopc.')}\n"
        "            transaction = table.transaction()\n"
        "            with transaction.update_snapshot(snapshot_properties=own).fast_append() as append:\n"
        "                for manifest in new.manifests(table.io):\n"
        "                    for entry in manifest.fetch_manifest_entry(table.io):\n"
        "                        if manifest.added_snapshot_id == new.snapshot_id:\n"
        "                            append.append_data_file(entry.data_file)\n"
        "            tag = updates[-1].ref_name\n"
        "            transaction._stage(*transaction._set_ref_snapshot(append.snapshot_id, tag, 'tag'))\n"
        "            transaction.commit_transaction()\n",
        model=False,
        protocol=f"{_COMMIT} -k held_back",
    ),
    one_edit(
        "Iceberg: a commit does not require that the tag has not moved",
        0,
        "sinks/iceberg/proposal.py",
        "        requirements.append(_unmoved(tag_of(sink), tagged))\n",
        "        pass\n",
        model=False,
        protocol=f"{_COMMIT} -k without_a_main",
    ),
    one_edit(
        "Iceberg: a commit does not require that the branch has not moved",
        0,
        "sinks/iceberg/proposal.py",
        "        requirements.append(_unmoved(MAIN_BRANCH, parent_id))\n",
        "        pass\n",
        model=False,
        protocol=f"{_COMMIT} -k without_snapshots",
    ),
    one_edit(
        "Iceberg: a late start sets the table's sequence number back",
        0,
        "sinks/iceberg/proposal.py",
        "    parent = metadata.refs.get(MAIN_BRANCH)\n",
        "    parent = metadata.refs.get(MAIN_BRANCH) if moves_branch else None\n",
        model=False,
        protocol=f"{_COMMIT} -k sequence_number",
    ),
    one_edit(
        "Iceberg: without a branch, a late start sets the table's sequence number back",
        0,
        "sinks/iceberg/proposal.py",
        "        requirements.extend(_unmoved(name, metadata.refs[name].snapshot_id) for name in others)\n",
        "        del others\n",
        model=False,
        protocol=f"{_COMMIT} -k sequence_number",
    ),
    one_edit(
        "Iceberg: a table without snapshots takes two first drivers",
        0,
        "sinks/iceberg/proposal.py",
        "    moves_branch = bool(change.additions) or not metadata.snapshots\n",
        "    moves_branch = bool(change.additions)\n",
        model=False,
        protocol=f"{_COMMIT} -k without_snapshots",
    ),
    one_edit(
        "Iceberg: a commit of others is rebased although the tag has moved",
        0,
        "sinks/iceberg/step.py",
        "        if now != before:\n",
        "        if False:\n",
        model=False,
        protocol=_COMMIT,
    ),
    one_edit(
        "Iceberg: a commit whose answer is lost is not looked for",
        0,
        "sinks/iceberg/step.py",
        "        if landed := next((proposal for proposal in tried if proposal.snapshot_id == now), None):\n"
        "            return landed\n",
        "",
        model=False,
        protocol=f"{_COMMIT} -k answer_is_lost",
    ),
    one_edit(
        "Iceberg: a try counts as failed because the tag has moved on",
        0,
        "sinks/iceberg/step.py",
        "        self._tidy(proposal for proposal in tried if proposal is not landed)\n",
        "        if len(tried) > 1:\n"
        "            tag = read_tag(self._store.load().metadata, self._sink)\n"
        "            self._tidy(proposal for proposal in tried if tag and proposal.snapshot_id != tag.snapshot_id)\n",
        model=False,
        protocol=f"{_COMMIT} -k successor",
    ),
    one_edit(
        "Iceberg: a commit without an answer deletes its files",
        0,
        "sinks/iceberg/step.py",
        "            failure = self._commit(tried[-1])\n",
        "            failure = self._commit(tried[-1])\n"
        "            for path in tried[-1].paths if failure else ():\n"
        "                delete(self.table, path)\n",
        model=False,
        protocol=f"{_COMMIT} -k answer",
    ),
    one_edit(
        "Iceberg: the retention of references removes the tag",
        0,
        "sinks/iceberg/proposal.py",
        '{"max-ref-age-ms": _FOREVER_MS}',
        "{}",
        model=False,
        protocol=f"{_COMMIT} -k outlives",
    ),
    one_edit(
        "Iceberg: a commit resets the retention of the branch",
        0,
        "sinks/iceberg/proposal.py",
        '        kept = parent.model_dump(by_alias=True, exclude={"snapshot_id", "snapshot_ref_type"}) if parent else {}\n',
        "        kept: dict[str, object] = {}\n",
        model=False,
        protocol=f"{_COMMIT} -k retention_of_the_branch",
    ),
    one_edit(
        "Iceberg: a deleted tag counts as a sink that never wrote",
        0,
        "sinks/iceberg/record.py",
        "        if left := _newest_of(metadata, sink):\n",
        "        if left := None:\n",
        model=False,
        protocol=f"{_COMMIT} -k deleted_tag",
    ),
    one_edit(
        "Iceberg: a tag that was moved back is believed",
        0,
        "sinks/iceberg/record.py",
        "    if newest != found.snapshot_id:\n",
        "    if False:\n",
        model=False,
        protocol=f"{_COMMIT} -k was_moved",
    ),
    one_edit(
        "Iceberg: an older table is believed at a start",
        0,
        "sinks/iceberg/committer.py",
        "        if newest < decided_before(known) or record.driver_epoch < version_of(known) >> _VERSIONS_OF_A_DRIVER:\n",
        "        if False:\n",
        model=False,
        protocol=_RESTORED,
    ),
    one_edit(
        "Iceberg: an older table is believed while a query runs",
        0,
        "sinks/iceberg/committer.py",
        "        if revision < self._revision:\n",
        "        if False:\n",
        model=False,
        protocol=_RESTORED,
    ),
    one_edit(
        "Iceberg: a decision whose files are gone is committed without them, and nobody hears of it",
        0,
        "sinks/iceberg/committer.py",
        "    return Evidence.ABORTED if handle.transaction in published.lost else Evidence.COMMITTED\n",
        "    return Evidence.COMMITTED\n",
        model=False,
        protocol=f"{_COMMIT} -k gone",
    ),
    one_edit(
        "Iceberg: a file is not looked for before it is added",
        0,
        "sinks/iceberg/prepared.py",
        "        return entries if all(size_of(table, entry.path) == entry.size for entry in entries) else None\n",
        "        return entries\n",
        model=False,
        protocol=f"{_COMMIT} -k another_size",
    ),
    one_edit(
        "Iceberg: a repair adds the whole batch again",
        0,
        "sinks/iceberg/committer.py",
        "[handle for handle in handles if handle.attempt not in published.attempts]",
        "list(handles)",
        model=False,
        protocol=f"{_COMMIT} -k repair",
    ),
    one_edit(
        "Iceberg: a transaction counts as committed with its attempt",
        0,
        "sinks/iceberg/committer.py",
        "    if asked > published.attempts.get(handle.attempt, 0):\n",
        "    if handle.attempt not in published.attempts:\n",
        model=False,
        protocol=f"{_COMMIT} -k not_in_the_commit",
    ),
    one_edit(
        "Iceberg: the versions of two drivers clash",
        0,
        "sinks/iceberg/committer.py",
        "max(above + 1, self._driver_epoch << _VERSIONS_OF_A_DRIVER)",
        "above + 1",
        model=False,
        protocol=f"{_COMMIT} -k clash",
    ),
    one_edit(
        "Iceberg: a sweep takes the files of the newest batch for orphans",
        0,
        "sinks/iceberg/orphans.py",
        "            if place > newest or (place == newest and place in self._decided):\n",
        "            if place >= newest:\n",
        model=False,
        protocol=_SWEEP,
    ),
    one_edit(
        "Iceberg: a sweep takes the files of earlier batches for orphans",
        0,
        "sinks/iceberg/orphans.py",
        "            if place > newest or (place == newest and place in self._decided):\n",
        "            if True:\n",
        model=False,
        protocol=_SWEEP,
    ),
    one_edit(
        "Iceberg: a sweep takes the files of a repair for orphans",
        0,
        "sinks/iceberg/committer.py",
        "            epoch, batch = max((published.epoch, published.batch), *places)\n",
        "            epoch, batch = min(places)\n",
        model=False,
        protocol=_SWEEP,
    ),
    one_edit(
        "Iceberg: a sweep looks at the files of another table",
        0,
        "sinks/iceberg/layout.py",
        "twopc-{sink}/{sink_id}",
        "twopc-{sink}",
        model=False,
        protocol=_SWEEP,
    ),
    one_edit(
        "Iceberg: orphans of failed attempts stay until the next start",
        0,
        "sinks/iceberg/orphans.py",
        "                yield own_epoch, batch + 1\n",
        "",
        model=False,
        protocol=_SWEEP,
    ),
    one_edit(
        "Iceberg: a table may be altered before the decision",
        0,
        "sinks/iceberg/committer.py",
        "        if any((handle.schema_id, handle.spec_id) != now for handle in handles):\n",
        "        if False:\n",
        model=False,
        protocol=f"{_COMMIT} -k altered_before",
    ),
    one_edit(
        "Iceberg: files are added with the newest partitioning",
        0,
        "sinks/iceberg/proposal.py",
        "table.metadata.schema_by_id(schema_id), table.metadata.specs().get(spec_id)",
        "table.metadata.schema(), table.metadata.spec()",
        model=False,
        protocol=f"{_COMMIT} -k altered_after",
    ),
    one_edit(
        "Iceberg: files older than maintenance allows are decided",
        0,
        "sinks/iceberg/committer.py",
        "        if age_ms > limit_ms:\n",
        "        if False:\n",
        model=False,
        protocol=f"{_COMMIT} -k too_long",
    ),
    one_edit(
        "Iceberg: a task of a former driver writes",
        0,
        "sinks/iceberg/writer.py",
        "        if record.driver_epoch != task.driver_epoch:\n",
        "        if False:\n",
        model=False,
        protocol=f"{_COMMIT} -k former_driver",
    ),
    one_edit(
        "Iceberg: what a null struct holds is written",
        0,
        "sinks/iceberg/values.py",
        "    children = values.flatten()  # unlike field(), without what a null struct holds\n",
        "    children = [values.field(index) for index in range(values.type.num_fields)]\n",
        model=False,
        protocol=_VALUES,
    ),
    one_edit(
        "Iceberg: a null in a required part is not found",
        0,
        "sinks/iceberg/values.py",
        "    if values.null_count and not field.nullable:\n",
        "    if False:\n",
        model=False,
        protocol=f"{_TABLES} -k cannot_be_written",
    ),
    one_edit(
        "Iceberg: a table of version 3 is written to",
        0,
        "sinks/iceberg/objections.py",
        "    if metadata.format_version != _FORMAT:\n",
        "    if False:\n",
        model=False,
        protocol=f"{_TABLES} -k does_not_support",
    ),
    Bug(
        "Iceberg: two partitions share a file if their values are equal",
        0,
        (
            Edit(
                "sinks/iceberg/partitions.py",
                "        key = result if type(result) is int else (type(result), repr(result))\n",
                "        key = result\n",
            ),
        ),
        protocol=f"{_PARTITIONS} -k double",
        model=False,
    ),
)
