"""Find the functions that the PostgreSQL sink's SQL calls."""

from __future__ import annotations

import ast
import re
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from twopc.sinks import postgres

if TYPE_CHECKING:
    from collections.abc import Iterator

_CALL = re.compile(r"(?<![\w.])((?:[a-z_]\w*\.)*)([a-z_]\w*)\(", re.IGNORECASE)
#: Before `name(`, these words and a closing bracket show that `name` is a new alias with columns.
_ALIAS = re.compile(r"(\)|\bORDINALITY|\bRECURSIVE)\s+$")
#: The parser itself knows these words. No schema can contain another meaning.
_GRAMMAR = {"any", "array", "cast", "coalesce", "exists", "operator", "substring"}
#: Strings that quote a call, but are not part of a statement.
_NO_SQL = re.compile(r"\w+\(\)|nextval\(|PostgresSink\(.*|write\(\) must be called first", re.DOTALL)


class Call(NamedTuple):
    """A call in SQL. `schema` is empty if the search path would choose the function."""

    where: str
    schema: str
    name: str


def calls() -> Iterator[Call]:
    """All calls in the strings of the sink's modules."""
    for where, text in strings():
        for call in calls_in(text):
            yield Call(where, *call)


def strings() -> Iterator[tuple[str, str]]:
    """All strings in the sink's modules, except docstrings, with the places where they begin."""
    for path in sorted(Path(postgres.__file__).parent.glob("*.py")):
        for line, text in _strings(ast.parse(path.read_text())):
            yield f"{path.name}:{line}", text


def calls_in(text: str) -> Iterator[tuple[str, str]]:
    """The schema and the name of each function that a string of SQL calls."""
    if _NO_SQL.fullmatch(text):
        return
    for found in _CALL.finditer(text):
        if found[2].lower() not in _GRAMMAR and not _ALIAS.search(text[: found.start()]):
            yield found[1].rstrip("."), found[2]


def _strings(tree: ast.Module) -> Iterator[tuple[int, str]]:
    statements = [body for node in ast.walk(tree) if isinstance(body := getattr(node, "body", None), list)]
    docs = {id(one.value) for body in statements for one in body if isinstance(one, ast.Expr)}
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in docs:
            yield node.lineno, node.value
