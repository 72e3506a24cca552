"""Broken variants of the Iceberg sink."""

from __future__ import annotations

from typing import Final

from tests.planted.bug import Bug, Edit, one_edit

_COMMIT: Final = "tests/unit/test_iceberg_commit.py"
_ALTERED: Final = "tests/unit/test_iceberg_altered.py"
_SHARED: Final = "tests/unit/test_lake_commit.py"
_BOUNDS: Final = "tests/unit/test_iceberg_bounds.py"
_TABLES: Final = "tests/unit/test_iceberg_tables.py"
_CATALOGS: Final = "tests/unit/test_iceberg_catalogs.py"
_PROPERTIES: Final = "tests/unit/test_iceberg_properties.py"
_PARTITIONS: Final = "tests/unit/test_iceberg_partitions.py"
_PRIVATE: Final = "tests/unit/test_iceberg_private.py"
_RESTORED: Final = "tests/unit/test_iceberg_restored.py"
#: The tests with a real catalog behind a proxy.
_LATE: Final = "tests/live/iceberg/test_late_commits.py"

ICEBERG_BUGS: Final[tuple[Bug, ...]] = (
    one_edit(
        "Iceberg: a commit goes through pyiceberg's own transaction",
        0,
        "sinks/iceberg/store.py",
        "            response = self._opened().commit_table(table, requirements, updates)\n",
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
        "            response = transaction.commit_transaction()\n",
        model=False,
        protocol=f"{_SHARED} -k change_of_driver",
        whole=f"{_LATE} -k successors_commits",
    ),
    one_edit(
        "Iceberg: a commit does not require that the tag has not moved",
        0,
        "sinks/iceberg/proposal.py",
        "        requirements.append(_unmoved(tag_of(sink), tagged))\n",
        "        pass\n",
        model=False,
        protocol=f"{_COMMIT} -k without_a_main",
        whole=f"{_LATE} -k without_a_main",
    ),
    one_edit(
        "Iceberg: a commit does not require that the branch has not moved",
        0,
        "sinks/iceberg/proposal.py",
        "    requirements.append(_unmoved(MAIN_BRANCH, parent_id))\n",
        "    pass\n",
        model=False,
        protocol=f"{_SHARED} -k new_table",
    ),
    one_edit(
        "Iceberg: a late start sets the table's sequence number back",
        0,
        "sinks/iceberg/proposal.py",
        '            "parent-snapshot-id": parent_id,\n',
        '            "parent-snapshot-id": parent_id if change.additions else None,\n',
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
        "Iceberg: a start raises the table's sequence number, but leaves the branch, so other writers' commits fail",
        0,
        "sinks/iceberg/proposal.py",
        '    updates.append(_moved(MAIN_BRANCH, "branch", snapshot_id, kept))\n',
        '    updates.extend([_moved(MAIN_BRANCH, "branch", snapshot_id, kept)] if change.additions or not parent else [])\n',
        model=False,
        protocol=f"{_COMMIT} -k another_writer",
    ),
    one_edit(
        "Iceberg: a commit of others is rebased although the tag has moved",
        0,
        "sinks/iceberg/step.py",
        "        if now != self._tagged:\n",
        "        if False:\n",
        model=False,
        protocol=f"{_SHARED} -k new_table",
    ),
    one_edit(
        "Iceberg: a commit whose answer is lost is not looked for",
        0,
        "sinks/iceberg/step.py",
        "        if self._landed is not None:\n            return True\n",
        "",
        model=False,
        protocol=f"{_SHARED} -k response_is_lost",
        whole=f"{_LATE} -k response_is_lost",
    ),
    one_edit(
        "Iceberg: a commit that was refused or got no answer is repeated on whatever the table shows",
        0,
        "sinks/iceberg/step.py",
        "        if self._landed is not None:\n"
        "            return True\n"
        "        if now != self._tagged:\n"
        '            raise OvertakenError(f"another driver has moved the sink\'s tag: {shortened(str(failure))}")\n',
        "        self._landed, self._tagged = None, now\n",
        model=False,
        protocol=f"{_SHARED} -k change_of_driver",
        whole=f"{_LATE} -k successors_commits",
    ),
    one_edit(
        "Iceberg: a try counts as failed because the tag has moved on",
        0,
        "sinks/iceberg/step.py",
        "                for path in () if proposal is self._landed else proposal.paths:\n",
        "                tag = read_tag(self._store.load().metadata, self.sink) if len(self._tried) > 1 else None\n"
        "                for path in proposal.paths if tag and proposal.snapshot_id != tag.snapshot_id else ():\n",
        model=False,
        protocol=f"{_COMMIT} -k successor",
    ),
    one_edit(
        "Iceberg: a commit without an answer deletes its files",
        0,
        "sinks/iceberg/step.py",
        "        except StoreError as error:\n            return error\n        self._landed",
        "        except StoreError as error:\n"
        "            for path in proposal.paths:\n"
        "                self.view.files.delete(path)\n"
        "            return error\n"
        "        self._landed",
        model=False,
        protocol=f"{_SHARED} -k response",
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
        '    kept = parent.model_dump(by_alias=True, exclude={"snapshot_id", "snapshot_ref_type"}) if parent else {}\n',
        "    kept: dict[str, object] = {}\n",
        model=False,
        protocol=f"{_COMMIT} -k retention_settings",
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
        protocol=f"{_COMMIT} -k moved_tag",
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
        "Iceberg: files are added although the table has replaced a column's type",
        0,
        "sinks/iceberg/step.py",
        "        self._require_fit()\n",
        "",
        model=False,
        protocol=f"{_ALTERED} -k not_added",
    ),
    one_edit(
        "Iceberg: a column's type is replaced between the check and the commit",
        0,
        "sinks/iceberg/proposal.py",
        "    if change.additions:  # The files were compared with this schema.\n",
        "    if False:\n",
        model=False,
        protocol=f"{_ALTERED} -k not_added",
    ),
    one_edit(
        "Iceberg: files whose partitioning is gone block the query for good",
        0,
        "sinks/iceberg/committer.py",
        "entries if has_definitions(step.view.table, handle.schema_id, handle.spec_id) else None",
        "entries",
        model=False,
        protocol=f"{_COMMIT} -k partitioning_was_removed",
    ),
    one_edit(
        "Iceberg: files are not looked for in the table before a start adds them",
        0,
        "sinks/iceberg/committer.py",
        "        return added_already(step.view.table, paths) if paths else set()\n",
        "        return set()\n",
        model=False,
        protocol=_RESTORED,
    ),
    one_edit(
        "Iceberg: the bounds of some row groups count for the whole file",
        0,
        "sinks/iceberg/private.py",
        "            statistics.column_aggregates.pop(field_id, None)\n",
        "            del field_id\n",
        model=False,
        protocol=_BOUNDS,
    ),
    one_edit(
        "Iceberg: a Parquet file has bounds and dictionaries of UUIDs, on which Iceberg for Java fails",
        0,
        "sinks/iceberg/private.py",
        "if id_ not in unordered]\n",
        "]\n",
        model=False,
        protocol=f"{_BOUNDS} -k uuid",
    ),
    one_edit(
        "Iceberg: a table is partitioned by UUIDs, and Spark skips rows",
        0,
        "sinks/iceberg/objections.py",
        "        elif isinstance(source.field_type, UUIDType) and ",
        "        elif isinstance(source.field_type, BooleanType) and ",
        model=False,
        protocol=f"{_TABLES} -k by_uuids",
    ),
    one_edit(
        "Iceberg: a manifest that nobody can read is committed for a partition field without a source",
        0,
        "sinks/iceberg/objections.py",
        "        elif source is None:\n",
        "        elif source is None and part.field_id < 0:\n",
        model=False,
        protocol=f"{_TABLES} -k column_was_dropped",
    ),
    one_edit(
        "Iceberg: a row whose truncated value does not fit is noticed only after the decision",
        0,
        "sinks/iceberg/rows.py",
        "        if own and not found:",
        "        if False:",
        model=False,
        protocol=f"{_PARTITIONS} -k truncated_value",
    ),
    one_edit(
        "Iceberg: partition values are first written into a manifest after the decision",
        0,
        "sinks/iceberg/committer.py",
        "            require_listable(step.view.table, (handle.schema_id, handle.spec_id), entries or ())\n",
        "            del handle, entries\n",
        model=False,
        protocol=f"{_PARTITIONS} -k not_decided",
    ),
    one_edit(
        "Iceberg: a signed request waits forever",
        0,
        "sinks/iceberg/private.py",
        "    session.send = limited  # type: ignore[method-assign]\n",
        "    session.send = lambda request, **given: (limited if len(session.adapters) == 2 else send)(request, **given)\n",
        model=False,
        protocol=f"{_PRIVATE} -k does_not_respond",
    ),
    one_edit(
        "Iceberg: the request for the first token waits forever",
        0,
        "sinks/iceberg/private.py",
        "        _limit(session, self._timeout_ms())  # the call below requests a token\n",
        "",
        model=False,
        protocol=f"{_PRIVATE} -k does_not_respond",
    ),
    one_edit(
        "Iceberg: the request for a token of OAuth2 waits forever",
        0,
        "sinks/iceberg/private.py",
        "        if isinstance(self._auth_manager, OAuth2AuthManager):\n",
        "        if False:\n",
        model=False,
        protocol=f"{_PRIVATE} -k does_not_respond",
    ),
    one_edit(
        "Iceberg: NaNs are not counted",
        0,
        "sinks/iceberg/private.py",
        "        counted = self._nans.keys() & statistics.value_counts.keys()\n",
        "        counted = set()\n",
        model=False,
        protocol=_BOUNDS,
    ),
    one_edit(
        "Iceberg: a path is cut, and files overwrite each other",
        0,
        "sinks/iceberg/objections.py",
        "        if set(place) & set(_CUT):\n",
        "        if False:\n",
        model=False,
        protocol=f"{_TABLES} -k overwrite",
    ),
    one_edit(
        "Iceberg: a value goes to two columns whose names differ only in case",
        0,
        "sinks/iceberg/objections.py",
        "    for struct in _structs(schema.as_struct()):\n",
        "    for struct in ():\n",
        model=False,
        protocol=f"{_TABLES} -k equal_in_parquet",
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
    one_edit(
        "Iceberg: a table property with a value that no write can use is noticed only during a batch",
        0,
        "sinks/iceberg/objections.py",
        "    yield from find_malformed(metadata)\n",
        "",
        model=False,
        protocol=f"{_PROPERTIES} -k cannot_use",
    ),
    one_edit(
        "Iceberg: a property that only data files depend on stops a decided batch",
        0,
        "sinks/iceberg/properties.py",
        "        if not (is_decided and name.startswith(_OF_DATA_FILES)):\n",
        "        if True:\n",
        model=False,
        protocol=f"{_PROPERTIES} -k after_the_decision",
    ),
    one_edit(
        "Iceberg: the case of a compression's name matters",
        0,
        "sinks/iceberg/properties.py",
        '    name = properties.get(_MANIFEST_CODEC, "gzip").lower()\n',
        '    name = properties.get(_MANIFEST_CODEC, "gzip")\n',
        model=False,
        protocol=f"{_PROPERTIES} -k accepted",
    ),
    one_edit(
        "Iceberg: an empty path for data is the root of the file system",
        0,
        "sinks/iceberg/layout.py",
        """    data = metadata.properties.get("write.data.path") or f"{metadata.location.rstrip('/')}/data"\n""",
        """    data = metadata.properties.get("write.data.path", f"{metadata.location.rstrip('/')}/data")\n""",
        model=False,
        protocol=f"{_PROPERTIES} -k accepted",
    ),
    one_edit(
        "Iceberg: drivers of one table in two catalogs share a directory, and delete each other's files",
        0,
        "sinks/iceberg/layout.py",
        "{layout.root(sink, sink_id)}-{through}",
        "{layout.root(sink, sink_id)}",
        model=False,
        protocol=f"{_CATALOGS} -k keep_their_rows",
    ),
    one_edit(
        "Iceberg: a new password hides the files of failed attempts from the sweep",
        0,
        "sinks/iceberg/layout.py",
        'uri.netloc.rpartition("@")[2]',
        "uri.netloc",
        model=False,
        protocol=f"{_CATALOGS} -k distinguish_catalogs",
    ),
    one_edit(
        "Iceberg: each commit leaves a metadata file behind although the table says otherwise",
        0,
        "sinks/iceberg/store.py",
        "        delete_old_metadata(table, response.metadata)\n",
        "",
        model=False,
        protocol=f"{_PROPERTIES} -k old_metadata",
    ),
)
