"""Broken variants of what the sinks for lakehouse tables share: each once for each format, whose own tests catch it."""

from __future__ import annotations

from itertools import chain
from typing import TYPE_CHECKING, Final

from tests.planted.bug import one_edit

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.planted.bug import Bug


def _bugs(name: str, path: str, old: str, new: str, **tests: str) -> Iterator[Bug]:
    """A bug for each format: its tests by the name of their file and, after a space, what selects them."""
    for fmt, given in tests.items():
        file, _, chosen = given.partition(" ")
        test = f"tests/unit/test_{fmt}_{file}.py"
        named = f"{fmt.title()}: {name}"
        yield one_edit(
            named, 0, f"sinks/lake/{path}", old, new, model=False, protocol=f"{test} -k {chosen}" if chosen else test
        )


LAKE_BUGS: Final[tuple[Bug, ...]] = tuple(
    chain(
        _bugs(
            "a lost transaction leaves no tombstone",
            "published.py",
            "        lost=(*published.lost, *(handle.transaction for handle, entries in found.items() if entries is None)),\n",
            "",
            delta="commit proven_lost",
            iceberg="commit proven_loss",
        ),
        _bugs(
            "a decision whose files are gone is committed without them, and nobody hears of it",
            "published.py",
            "    return Evidence.ABORTED if handle.transaction in published.lost else Evidence.COMMITTED\n",
            "    return Evidence.COMMITTED\n",
            delta="commit proven_lost",
            iceberg="commit gone",
        ),
        _bugs(
            "a transaction counts as committed with its attempt",
            "published.py",
            "    if asked > published.attempts.get(handle.attempt, 0):\n",
            "    if handle.attempt not in published.attempts:\n",
            iceberg="commit not_in_the_commit",
        ),
        _bugs(
            "a repair adds the whole batch again",
            "committer.py",
            "[handle for handle in handles if handle.attempt not in published.attempts]",
            "list(handles)",
            delta="commit comes_back",
            iceberg="commit repair",
        ),
        _bugs(
            "a file is not looked for before the decision",
            "committer.py",
            "            found = whole(step.view.files, handles, self._entry)\n            was_altered",
            "            found = dict.fromkeys(handles, [])\n            was_altered",
            delta="commit voids_the_attempt",
            iceberg="commit void",
        ),
        _bugs(
            "the size of a file does not matter",
            "prepared.py",
            "all(files.size_of(entry.path) == entry.size for entry in entries)",
            "all(files.size_of(entry.path) for entry in entries)",
            delta="commit cut_short",
            iceberg="commit another_size",
        ),
        _bugs(
            "a table may be altered before the decision",
            "committer.py",
            "        if was_altered:\n",
            "        if False:\n",
            delta="commit altered_before",
            iceberg="commit altered_before",
        ),
        _bugs(
            "files older than maintenance allows are decided",
            "committer.py",
            "            self.require_young(step, age_ms)\n",
            "",
            delta="restored take_for_garbage",
            iceberg="commit too_long",
        ),
        _bugs(
            "the versions of two drivers clash",
            "committer.py",
            "max(above + 1, self._driver_epoch << _VERSIONS_OF_A_DRIVER)",
            "above + 1",
            delta="commit clash",
            iceberg="commit clash",
        ),
        _bugs(
            "an older table is believed at a start",
            "committer.py",
            "        if newest < decided_before(known) or record.driver_epoch < version_of(known) >> _VERSIONS_OF_A_DRIVER:\n",
            "        if False:\n",
            delta="restored older_table",
            iceberg="restored",
        ),
        _bugs(
            "an older table is believed while a query runs",
            "committer.py",
            "        if control.decode(stored).revision < self._revision:\n",
            "        if False:\n",
            delta="restored running_driver",
            iceberg="restored",
        ),
        _bugs(
            "a table that is created again is not noticed",
            "committer.py",
            '        if self._table_id not in {"", found}:\n',
            "        if False:\n",
            delta="restored while_a_driver_runs",
            iceberg="commit created_again",
        ),
        _bugs(
            "a task of a driver that was replaced writes",
            "writer.py",
            "        if owner.driver_epoch != self._task.driver_epoch:\n",
            "        if not owner.id:\n",
            delta="commit was_replaced_writes_nothing",
            iceberg="commit former_driver",
        ),
        _bugs(
            "a sweep takes the files of the newest batch for orphans",
            "orphans.py",
            "            if place > newest or (place == newest and place in self._decided):\n",
            "            if place >= newest:\n",
            delta="sweep earlier_batches",
            iceberg="sweep",
        ),
        _bugs(
            "a sweep takes the files of earlier batches for orphans",
            "orphans.py",
            "            if place > newest or (place == newest and place in self._decided):\n",
            "            if place != newest or place in self._decided:\n",
            delta="sweep earlier_batches",
            iceberg="sweep",
        ),
        _bugs(
            "a fenced driver sweeps its successor",
            "orphans.py",
            "            if first_epoch <= epoch <= own_epoch:\n",
            "            if first_epoch <= epoch:\n",
            delta="sweep fenced_after_its_look",
        ),
        _bugs(
            "orphans of failed attempts stay until the next start",
            "orphans.py",
            "                yield own_epoch, batch + 1\n",
            "",
            delta="sweep failed_attempts",
            iceberg="sweep",
        ),
        _bugs(
            "a sweep takes the files of a repair for orphans",
            "committer.py",
            "max((published.epoch, published.batch), *places)",
            "next(places)",
            delta="sweep repair",
            iceberg="sweep repair",
        ),
        _bugs(
            "a sweep takes the files of another table, or of a converted one, for orphans",
            "layout.py",
            '    return f"twopc-{sink}/{sink_id}"\n',
            '    return f"twopc-{sink}/id"\n',
            delta="sweep made_anew",
            iceberg="sweep one_directory",
        ),
        _bugs(
            "what a null struct holds is written",
            "values.py",
            "    children = values.flatten()  # unlike field(), without what a null struct holds\n",
            "    children = [values.field(index) for index in range(values.type.num_fields)]\n",
            iceberg="values",
        ),
        _bugs(
            "a null in a required part is not found",
            "values.py",
            "    if values.null_count and not field.nullable:\n",
            "    if False:\n",
            delta="values bad_record",
            iceberg="tables cannot_be_written",
        ),
        _bugs(
            "a text that is not UTF-8 is not found",
            "values.py",
            "    elif _is_text(target):\n",
            "    elif False:\n",
            delta="values bad_record",
            iceberg="tables cannot_be_written",
        ),
    )
)
