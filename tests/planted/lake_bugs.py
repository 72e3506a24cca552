"""Broken variants of what the sinks for lakehouse tables share: each once for each format, whose own tests catch it."""

from __future__ import annotations

from itertools import chain
from typing import TYPE_CHECKING, Final

from tests.planted.bug import one_edit

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.planted.bug import Bug


def _bugs(name: str, path: str, old: str, new: str, **tests: str) -> Iterator[Bug]:
    """A bug for each format, with its test. The path is in ``sinks/lake``, or the whole path of another file."""
    where = path if "/" in path else f"sinks/lake/{path}"
    for fmt, test in tests.items():
        yield one_edit(f"{fmt.title()}: {name}", 0, where, old, new, model=False, protocol=f"tests/unit/test_{test}")


def _both(test: str, *parameters: str) -> dict[str, str]:
    """A test that has a case for each format."""
    return {fmt: f"lake_{test}[{'-'.join([fmt, *parameters])}]" for fmt in ("delta", "iceberg")}


LAKE_BUGS: Final[tuple[Bug, ...]] = tuple(
    chain(
        _bugs(
            "rows that wait are split into very many small tables",
            "rolling.py",
            "        self._waiting.append(rows)\n",
            "        self._waiting.extend(rows.take(numbers) for _, numbers in self._made.split(rows))\n",
            lake="lake_rolling.py -k very_many",
        ),
        _bugs(
            "small partitions get a file whenever a large one is written",
            "rolling.py",
            "down_to=self._limits.waiting / 2",
            "down_to=-math.inf",
            lake="lake_rolling.py -k small_partition",
        ),
        _bugs(
            "a lost transaction leaves no tombstone",
            "published.py",
            "        lost=(*published.lost, *(handle.transaction for handle, entries in found.items() if entries is None)),\n",
            "",
            **_both("commit.py::test_files_missing_after_the_decision_are_proven_lost_and_the_others_are_committed"),
        ),
        _bugs(
            "a decision whose files are gone is silently committed without them",
            "published.py",
            "    return Evidence.ABORTED if handle.transaction in published.lost else Evidence.COMMITTED\n",
            "    return Evidence.COMMITTED\n",
            **_both("commit.py::test_files_missing_after_the_decision_are_proven_lost_and_the_others_are_committed"),
        ),
        _bugs(
            "a transaction counts as committed with its attempt",
            "published.py",
            "    if asked > published.attempts.get(handle.attempt, 0):\n",
            "    if handle.attempt not in published.attempts:\n",
            **_both("commit.py::test_a_transaction_whose_rows_are_missing_from_the_commit_does_not_count_as_committed"),
        ),
        _bugs(
            "a repair adds the whole batch again",
            "committer.py",
            "[handle for handle in handles if handle.attempt not in published.attempts]",
            "list(handles)",
            **_both("commit.py::test_files_missing_after_the_decision_are_proven_lost_and_the_others_are_committed"),
        ),
        _bugs(
            "a file is not looked for before the decision",
            "committer.py",
            "            found = whole(step.view.files, handles, self._entry)\n            self.require_young",
            "            found = dict.fromkeys(handles, [])\n            self.require_young",
            **_both("commit.py::test_a_file_missing_before_the_decision_voids_the_attempt"),
        ),
        _bugs(
            "the size of a file does not matter",
            "prepared.py",
            "        if files.size_of(entry.path) == entry.size:\n",
            "        if files.size_of(entry.path):\n",
            **_both("commit.py::test_a_file_truncated_before_the_decision_voids_the_attempt"),
        ),
        _bugs(
            "a table may be altered before the decision",
            "committer.py",
            "        if was_altered:\n",
            "        if False:\n",
            **_both("commit.py::test_a_table_altered_before_the_decision_voids_the_attempt"),
        ),
        _bugs(
            "files older than maintenance allows are decided",
            "committer.py",
            "            self.require_young(step, max(age_ms, _oldest_ms(found)))\n",
            "",
            delta="delta_restored.py -k take_for_garbage",
            iceberg="iceberg_commit.py -k too_long",
        ),
        _bugs(
            "a list of files is deleted although a crash may undo the commit of its batch",
            "step.py",
            "        before, files = self.view.outcome, self.view.files\n"
            "        if before.version == self.published.version:\n",
            "        before, files = self.published, self.view.files\n        if not before.lists:\n",
            **_both("restored.py::test_a_lost_commit_is_repeated_if_it_was_the_newest", "10"),
        ),
        _bugs(
            "the lists of files stay forever",
            "published.py",
            "lists=tuple(sorted({*published.lists, *lists})),",
            "lists=(),",
            **_both("sweep.py::test_a_file_with_entries_stays_until_the_next_batch_with_rows_is_in_the_table", "True"),
        ),
        _bugs(
            "lists of files stay forever if a driver dies before it deletes them",
            "committer.py",
            "Published(version=version, former_lists=published.lists)",
            "Published(version=version)",
            **_both(
                "sweep.py::test_files_with_entries_that_a_dead_driver_should_have_deleted_are_deleted_after_the_next_batch"
            ),
        ),
        _bugs(
            "a repair forgets the lists of files of the drivers before it",
            "published.py",
            "sorted({*published.lists, *lists})",
            "sorted(lists)",
            **_both(
                "sweep.py::test_files_with_entries_of_several_drivers_are_deleted_after_the_batch_that_follows_their_repair"
            ),
        ),
        _bugs(
            "a commit fails at once if the table cannot be read",
            "committer.py",
            "        return self._timeout_ms\n",
            "        return 1\n",
            **_both("commit.py::test_a_commit_waits_for_a_table_that_cannot_be_read_for_a_while"),
        ),
        _bugs(
            "a request without a response takes the time of all attempts at a commit",
            "twopc/fenced_committer.py",
            "stop_after_delay(self.retry_ms / 1000) & stop_after_attempt(2)",
            "stop_after_delay(self.retry_ms / 1000)",
            **_both("commit.py::test_a_commit_is_repeated_after_a_request_that_took_all_of_its_time"),
        ),
        _bugs(
            "each attempt at a commit has a timeout of its own",
            "committer.py",
            "step.end(min(self._timeout_ms, 1000 * (self._commit_ends_at - time.monotonic())))",
            "step.end(self._timeout_ms)",
            **_both("commit.py::test_all_attempts_at_a_commit_share_one_timeout"),
        ),
        _bugs(
            "a late batch's files are added, although running maintenance may have listed them for deletion",
            "renewal.py",
            "    if not old:\n",
            "    if True:\n",
            **_both("commit.py::test_maintenance_that_began_before_a_late_commit_deletes_no_row_of_the_batch"),
        ),
        _bugs(
            "each start of a blocked batch copies its files again",
            "renewal.py",
            "copy_of(files, entry, copies, since_ms) or _copied(files, entry)",
            "_copied(files, entry)",
            **_both("commit.py::test_starts_whose_commits_fail_share_one_copy_of_each_file"),
        ),
        _bugs(
            "an old copy is used again",
            "prepared.py",
            "        if at_ms >= since_ms and files",
            "        if files",
            **_both("commit.py::test_an_old_or_incomplete_copy_is_not_used_again", "old"),
        ),
        _bugs(
            "an incomplete copy is used again",
            "prepared.py",
            "        if at_ms >= since_ms and files.size_of(path) == entry.size:\n",
            "        if at_ms >= since_ms:\n",
            **_both("commit.py::test_an_old_or_incomplete_copy_is_not_used_again", "incomplete"),
        ),
        _bugs(
            "a file whose original was deleted counts as lost, although there is a copy",
            "prepared.py",
            "        return copy_of(files, entry, copies(directory_of(entry.path)))\n",
            "        return None\n",
            **_both("commit.py::test_a_copy_is_used_after_maintenance_has_deleted_its_original", "0"),
        ),
        _bugs(
            "the time for which the driver was suspended does not count",
            "committer.py",
            "max(age_ms, _oldest_ms(found))",
            "age_ms",
            **_both("commit.py::test_a_batch_whose_files_grew_old_while_the_driver_was_suspended_is_not_decided"),
        ),
        _bugs(
            "the versions of two drivers clash",
            "versions.py",
            "max(above + 1, driver_epoch << _VERSIONS_OF_A_DRIVER)",
            "above + 1",
            **_both("commit.py::test_two_drivers_never_use_the_same_version"),
        ),
        _bugs(
            "an older table is believed at a start",
            "versions.py",
            "    return newest < decided_before(known) or record.driver_epoch < version_of(known) >> _VERSIONS_OF_A_DRIVER\n",
            "    return False\n",
            **_both("restored.py::test_a_start_on_an_older_table_is_refused", "1"),
        ),
        _bugs(
            "an older table is believed while a query runs",
            "committer.py",
            "        if control.decode(stored).revision < self._revision:\n",
            "        if False:\n",
            **_both("restored.py::test_a_table_restored_while_a_query_runs_is_reported"),
        ),
        _bugs(
            "a table that is created again is not noticed",
            "committer.py",
            '        if self._table_id not in {"", found}:\n',
            "        if False:\n",
            **_both("commit.py::test_a_recreated_table_is_reported_while_a_driver_runs"),
        ),
        _bugs(
            "a task of a driver that was replaced writes",
            "writer.py",
            "        if owner.driver_epoch != self._task.driver_epoch:\n",
            "        if not owner.id:\n",
            **_both("commit.py::test_a_task_of_a_replaced_driver_writes_nothing"),
        ),
        _bugs(
            "a repeated commit names files that are gone",
            "step.py",
            "            if self.additions:\n",
            "            if False:\n",
            **_both("commit.py::test_files_deleted_between_two_attempts_to_commit_count_as_lost", "True"),
        ),
        _bugs(
            "a sweep takes the files of the newest batch for orphans",
            "orphans.py",
            "            if place > newest or (place == newest and place in self._decided):\n",
            "            if place >= newest:\n",
            **_both("sweep.py::test_files_of_earlier_batches_and_drivers_stay"),
        ),
        _bugs(
            "a sweep takes the files of earlier batches for orphans",
            "orphans.py",
            "            if place > newest or (place == newest and place in self._decided):\n",
            "            if place != newest or place in self._decided:\n",
            **_both("sweep.py::test_files_of_earlier_batches_and_drivers_stay"),
        ),
        _bugs(
            "a fenced driver sweeps its successor",
            "orphans.py",
            "        if published.epoch <= epoch <= own_epoch:\n",
            "        if published.epoch <= epoch:\n",
            **_both("sweep.py::test_a_driver_fenced_after_its_check_does_not_even_list_the_files_of_its_successor"),
        ),
        _bugs(
            "orphans of failed attempts stay until the next start",
            "orphans.py",
            "return sorted(last | {(own_epoch, batch + 1) for _, batch in last})\n",
            "return sorted(last)\n",
            **_both("sweep.py::test_orphans_of_the_decided_batch_and_of_the_next_batch_are_found"),
        ),
        _bugs(
            "a batch without rows lists the directories of all batches",
            "orphans.py",
            "        self._without_rows = None if has_rows else batch\n",
            "        self._without_rows = None\n",
            **_both("sweep.py::test_a_batch_without_rows_does_not_search_the_earlier_batches"),
        ),
        _bugs(
            "the files of an abandoned batch stay",
            "orphans.py",
            "        self._without_rows = None if has_rows else batch\n",
            "        self._without_rows = batch\n",
            **_both("sweep.py::test_the_files_of_an_abandoned_batch_are_deleted"),
        ),
        _bugs(
            "a start lists the directories of all batches",
            "orphans.py",
            "                if (epoch, group) >= first:\n",
            "                if True:\n",
            **_both("sweep.py::test_a_start_does_not_list_the_batches_before_the_newest"),
        ),
        _bugs(
            "a sweep leaves the files of a task with more than 100,000 files",
            "layout.py",
            "(?:-[0-9]{{5,}}(?:",
            "(?:-[0-9]{{5}}(?:",
            **_both("sweep.py::test_the_file_of_a_task_with_very_many_files_is_found"),
        ),
        _bugs(
            "a sweep takes the files of a repair for orphans",
            "committer.py",
            "max((published.epoch, published.batch), *places)",
            "next(places)",
            **_both("sweep.py::test_the_files_of_a_repair_stay_although_another_query_has_no_record_of_them", "True"),
        ),
        _bugs(
            "a sweep takes the files of another table, or of a converted one, for orphans",
            "layout.py",
            '    return f"twopc-{sink}/{sink_id}"\n',
            '    return f"twopc-{sink}/id"\n',
            delta="delta_sweep.py -k created_again",
            iceberg="iceberg_sweep.py -k one_directory",
        ),
        _bugs(
            "what a null struct holds is written",
            "values.py",
            "    children = values.flatten()  # unlike field(), flatten() omits the values inside null structs\n",
            "    children = [values.field(index) for index in range(values.type.num_fields)]\n",
            iceberg="lake_values.py",
        ),
        _bugs(
            "a null struct with a required field can never be written",
            "values.py",
            "        else filled(convert(children[index], one.type, field.type), field)\n",
            "        else convert(children[index], one.type, field.type)\n",
            iceberg="lake_values.py -k in_place_of_a_struct",
        ),
        _bugs(
            "a missing struct with a required field can never be written",
            "rows.py",
            "            nulls(rows.num_rows, stored.type)\n",
            "            pa.nulls(rows.num_rows, stored.type)\n",
            iceberg="lake_values.py -k missing_struct",
        ),
        _bugs(
            "rows that pyarrow refuses are tried again and again",
            "errors.py",
            '        return next(by_class, None) or next(by_words, (UnavailableError, ""))\n',
            '        return next(by_words, (UnavailableError, ""))\n',
            iceberg="lake_values.py -k pyarrow_refuses",
        ),
        _bugs(
            "a null in a required part is not found",
            "values.py",
            "    if values.null_count and not field.nullable:\n",
            "    if False:\n",
            delta="delta_values.py -k bad_record",
            iceberg="iceberg_tables.py -k cannot_be_written",
        ),
        _bugs(
            "a text that is not UTF-8 is not found",
            "values.py",
            "    elif _is_text(target):\n",
            "    elif False:\n",
            delta="delta_values.py -k bad_record",
            iceberg="iceberg_tables.py -k cannot_be_written",
        ),
    )
)
