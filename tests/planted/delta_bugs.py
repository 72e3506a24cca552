"""Broken variants of the Delta sink."""

from __future__ import annotations

from typing import Final

from tests.planted.bug import Bug, one_edit

_COMMIT: Final = "tests/unit/test_delta_commit.py"
_SHARED: Final = "tests/unit/test_lake_commit.py"
_RECORDS: Final = "tests/unit/test_delta_records.py"
_RESTORED: Final = "tests/unit/test_delta_restored.py"
_TABLES: Final = "tests/unit/test_delta_tables.py"
_VALUES: Final = "tests/unit/test_delta_values.py"


def _bug(name: str, path: str, old: str, new: str, test: str) -> Bug:
    return one_edit(f"Delta: {name}", 0, f"sinks/delta/{path}", old, new, model=False, protocol=test)


DELTA_BUGS: Final[tuple[Bug, ...]] = (
    _bug(
        "a commit goes to a later version than the one that was looked at",
        "step.py",
        "self._written(), self._table\n",
        "self._written(), self._store.load()\n",
        f"{_COMMIT} -k its_check_and_its_commit",
    ),
    _bug(
        "a commit of a driver that was replaced is repeated for the newer pointer",
        "step.py",
        "        if now != (self._before.pointer if self._before else None):\n",
        "        if False:\n",
        f"{_SHARED} -k change_of_driver",
    ),
    _bug(
        "a commit whose answer was lost is not recognised",
        "step.py",
        "        if now == record.pointer:\n            return True\n",
        "",
        f"{_SHARED} -k response_is_lost",
    ),
    _bug(
        "a table looks altered because its columns' metadata comes in another order",
        "table.py",
        "schema_json=_sorted(schema.to_json())",
        "schema_json=schema.to_json()",
        f"{_COMMIT} -k metadata_of_columns",
    ),
    _bug(
        "the type of a partition column may change after the decision",
        "prepared.py",
        "        if text is not None and not is_unchanged(text, column.type):\n",
        "        if False:\n",
        f"{_COMMIT} -k partition_value",
    ),
    _bug(
        "a partition column may become NOT NULL although a decided file has a null there",
        "prepared.py",
        "        if text is None and not column.nullable:\n",
        "        if False:\n",
        f"{_COMMIT} -k partition_value",
    ),
    _bug(
        "a table that was altered between two tries is not looked at again",
        "step.py",
        "        self._require_fit()\n",
        "",
        f"{_COMMIT} -k do_not_fit",
    ),
    _bug(
        "VACUUM deletes the record",
        "record.py",
        'return f"_twopc/{sink}"',
        'return f"twopc/{sink}"',
        f"{_RESTORED} -k spares_the_record",
    ),
    _bug(
        "two sinks whose names differ only in case share a directory of records",
        "record.py",
        "    if sink == sink.lower():\n",
        "    if sink:\n",
        f"{_RECORDS} -k ignores_case",
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
        "a file has the bounds of only some columns",
        "stats.py",
        "            if pa.types.is_binary(field.type):",
        "            if pa.types.is_boolean(field.type):",
        f"{_VALUES} -k filter_finds",
    ),
    _bug(
        "a struct has no entry among the bounds, so a filter does not find its nulls",
        "stats.py",
        "{name: {} for name in self._structs}",
        "{}",
        f"{_VALUES} -k nested_column",
    ),
    _bug(
        "a list of columns with statistics is obeyed although readers ignore it",
        "stats.py",
        "if named is not None and _LIST.fullmatch(named) else",
        "if named is not None else",
        f"{_VALUES} -k no_matter_which",
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
        "            self._forget(self._before.before)\n",
        "            self._forget(self._before.pointer)\n",
        f"{_RESTORED} -k missing_from_the_log",
    ),
    _bug(
        "a driver that was replaced deletes its record although its commit may have taken effect",
        "step.py",
        '            raise OvertakenError(f"another driver has moved the sink',
        "            self._forget(record.pointer)\n"
        '            raise OvertakenError(f"another driver has moved the sink',
        f"{_RESTORED} -k without_a_response",
    ),
    _bug(
        "a start deletes a record although a crash may bring its pointer back",
        "record.py",
        ">> _RANDOM_BITS < pointer >> _RANDOM_BITS",
        ">> _RANDOM_BITS <= pointer >> _RANDOM_BITS",
        f"{_RESTORED} -k whose_commit_is_missing",
    ),
    _bug(
        "each start of a blocked batch leaves a record",
        "step.py",
        "        self._require_fit()\n        record, table = self._written(), self._table\n",
        "        record, table = self._written(), self._table\n        self._require_fit()\n",
        f"{_COMMIT} -k blocked_batch_leave",
    ),
    _bug(
        "the records of failed steps stay forever",
        "step.py",
        "        if self.published is None:\n",
        "        if False:\n",
        f"{_COMMIT} -k records_of_failed",
    ),
    _bug(
        "a Parquet file has bounds that leave NaN out",
        "data_files.py",
        'not in {"FLOAT", "DOUBLE"}',
        "not in set()",
        f"{_VALUES} -k nan_is_found",
    ),
    _bug(
        "a Parquet file does not say which calendar its dates use",
        "data_files.py",
        "        self._writer.add_key_value_metadata(_SPARK_VERSION)\n",
        "",
        f"{_VALUES} -k which_calendar",
    ),
    _bug(
        "a malformed count of columns with statistics is noticed only during a batch",
        "settings.py",
        "(*find_objections(definition), *find_malformed(definition.configuration))",
        "find_objections(definition)",
        f"{_TABLES} -k does_not_understand",
    ),
    _bug(
        "a retention that is not a number is taken for a long one",
        "objections.py",
        "    return total if math.isfinite(total) else None\n",
        "    return total\n",
        f"{_TABLES} -k does_not_understand",
    ),
)
