"""Broken variants of the Delta sink."""

from __future__ import annotations

from typing import Final

from tests.planted.bug import Bug, one_edit

_COMMIT: Final = "tests/unit/test_delta_commit.py"
_RESTORED: Final = "tests/unit/test_delta_restored.py"
_SWEEP: Final = "tests/unit/test_delta_sweep.py"
_TABLES: Final = "tests/unit/test_delta_tables.py"
_VALUES: Final = "tests/unit/test_delta_values.py"


def _bug(name: str, path: str, old: str, new: str, test: str) -> Bug:
    return one_edit(f"Delta: {name}", 0, f"sinks/delta/{path}", old, new, model=False, protocol=test)


DELTA_BUGS: Final[tuple[Bug, ...]] = (
    _bug(
        "a commit goes to a later version than the one that was looked at",
        "step.py",
        "        table, batch = self.table, self.published.batch if self.published else -1\n",
        "        batch = self.published.batch if self.published else -1\n        table = self._store.load()\n",
        f"{_COMMIT} -k its_look_and_its_commit",
    ),
    _bug(
        "a commit of a driver that was replaced is repeated for the newer pointer",
        "step.py",
        "        if now != (self.record.pointer if self.record else None):\n",
        "        if False:\n",
        f"{_COMMIT} -k change_of_driver",
    ),
    _bug(
        "a commit whose answer was lost is not recognised",
        "step.py",
        "        if now == record.pointer:\n            return True\n",
        "",
        f"{_COMMIT} -k answer_is_lost",
    ),
    _bug(
        "a lost transaction leaves no tombstone",
        "committer.py",
        "            lost=(*published.lost, *(handle.transaction for handle, entries in found.items() if entries is None)),\n",
        "",
        f"{_COMMIT} -k proven_lost",
    ),
    _bug(
        "the attempts of a decision are not counted",
        "committer.py",
        "[handle for handle in handles if handle.attempt not in published.attempts]",
        "list(handles)",
        f"{_COMMIT} -k reappears",
    ),
    _bug(
        "a file is not looked for before the decision",
        "committer.py",
        "            found = whole(self._store, handles)\n        if any(",
        "            found = dict.fromkeys(handles, ())\n        if any(",
        f"{_COMMIT} -k voids_the_attempt",
    ),
    _bug(
        "the size of a file does not matter",
        "prepared.py",
        "all(store.size_of(entry.path) == entry.size for entry in entries)",
        "all(store.size_of(entry.path) for entry in entries)",
        f"{_COMMIT} -k cut_short",
    ),
    _bug(
        "a table that was altered between two tries is not looked at again",
        "step.py",
        "            self.require_fit(self.table)\n            failure =",
        "            failure =",
        f"{_COMMIT} -k do_not_fit",
    ),
    _bug(
        "a task of a driver that was replaced writes",
        "writer.py",
        "        if owner.driver_epoch != self._task.driver_epoch:\n",
        "        if not owner.id:\n",
        f"{_COMMIT} -k was_replaced_writes_nothing",
    ),
    _bug(
        "a start on an older table is accepted",
        "committer.py",
        "        if newest < decided_before(known) or record.driver_epoch < version_of(known) >> _VERSIONS_OF_A_DRIVER:\n",
        "        if False:\n",
        f"{_RESTORED} -k older_table",
    ),
    _bug(
        "a table that is restored beside a running driver is not noticed",
        "committer.py",
        "        if control.decode(stored).revision < self._revision:\n",
        "        if False:\n",
        f"{_RESTORED} -k running_driver",
    ),
    _bug(
        "a table that is created again is not noticed",
        "committer.py",
        '        if self._id not in {"", found}:\n',
        "        if False:\n",
        f"{_RESTORED} -k while_a_driver_runs",
    ),
    _bug(
        "VACUUM deletes the record",
        "layout.py",
        'f"_twopc/{sink}/{pointer}.json"',
        'f"twopc/{sink}/{pointer}.json"',
        f"{_RESTORED} -k spares_the_record",
    ),
    _bug(
        "a batch is decided although VACUUM may have its files",
        "committer.py",
        "            self._require_young(age_ms, table.configuration)\n",
        "",
        f"{_RESTORED} -k take_for_garbage",
    ),
    _bug(
        "the evidence may expire",
        "objections.py",
        "    if _EXPIRY in configuration:\n",
        "    if False:\n",
        f"{_TABLES} -k does_not_understand",
    ),
    _bug(
        "features that the sink does not know are accepted",
        "objections.py",
        "sorted(set(table.features) - _UNDERSTOOD)",
        "sorted(set())",
        f"{_TABLES} -k does_not_understand",
    ),
    _bug(
        "the newest batch is swept without its decision",
        "orphans.py",
        "            if place > newest or (place == newest and place in self._decided):\n",
        "            if place >= newest:\n",
        f"{_SWEEP} -k earlier_batches",
    ),
    _bug(
        "all batches are swept",
        "orphans.py",
        "            if place > newest or (place == newest and place in self._decided):\n",
        "            if place != newest or place in self._decided:\n",
        f"{_SWEEP} -k earlier_batches",
    ),
    _bug(
        "a fenced driver sweeps its successor",
        "orphans.py",
        "            if first_epoch <= epoch <= own_epoch:\n",
        "            if first_epoch <= epoch:\n",
        f"{_SWEEP} -k fenced_after_its_look",
    ),
    _bug(
        "an empty string in a partition column becomes null",
        "rows.py",
        "        if field.name in self.partitions and ",
        "        if field.name in () and ",
        f"{_VALUES} -k bad_record",
    ),
    _bug(
        "the upper bound of times is cut",
        "stats.py",
        "        above = -(-value // _MS_US) * _MS_US\n",
        "        above = value // _MS_US * _MS_US\n",
        f"{_VALUES} -k bounds_of_times",
    ),
    _bug(
        "the upper bound of strings is cut",
        "stats.py",
        "value[:kept] + _LAST_CHARACTER",
        "value[:kept]",
        f"{_VALUES} -k bounds_of_strings",
    ),
    _bug(
        "NaN is below the upper bound",
        "stats.py",
        "        if not self._unordered and None not",
        "        if None not",
        f"{_VALUES} -k differently",
    ),
    _bug(
        "a sweep takes the files of a repair for orphans",
        "committer.py",
        "max((published.epoch, published.batch), *places)",
        "next(places)",
        f"{_SWEEP} -k repair",
    ),
    _bug(
        "a sweep takes the files of a converted table for orphans",
        "layout.py",
        '    return f"twopc-{sink}/{sink_id}"\n',
        '    return f"twopc-{sink}/id"\n',
        f"{_SWEEP} -k made_anew",
    ),
    _bug(
        "one table is taken for another",
        "settings.py",
        " & set(_MISREAD),",
        " & set(),",
        f"{_TABLES} -k argument",
    ),
    _bug(
        "a field that is added to a struct blocks a decided batch",
        "prepared.py",
        "    if pa.types.is_struct(before) and pa.types.is_struct(after):\n",
        "    if False:\n",
        f"{_COMMIT} -k added_to_a_struct",
    ),
    _bug(
        "a repeated commit names files that are gone",
        "step.py",
        "            self.require_whole()\n",
        "",
        f"{_COMMIT} -k between_two",
    ),
    _bug(
        "a file has the bounds of only some columns",
        "stats.py",
        "            if pa.types.is_binary(field.type):",
        "            if pa.types.is_boolean(field.type):",
        f"{_VALUES} -k filter_finds",
    ),
    _bug(
        "a bound of decimals is rounded inwards",
        "stats.py",
        "zero=0.0, rounding=decimal.ROUND_CEILING",
        "zero=0.0, rounding=decimal.ROUND_FLOOR",
        f"{_VALUES} -k bounds_of_decimals",
    ),
    _bug(
        "a record is deleted although a crash may bring its pointer back",
        "step.py",
        "        if self.record is not None and self.record.before is not None:\n            self._forget(self.record.before)\n",
        "        if self.record is not None:\n            self._forget(self.record.pointer)\n",
        f"{_RESTORED} -k log_that_lacks",
    ),
    _bug(
        "a Parquet file has bounds that leave NaN out",
        "rolling.py",
        'not in {"FLOAT", "DOUBLE"}',
        "not in set()",
        f"{_VALUES} -k nan_is_found",
    ),
)
