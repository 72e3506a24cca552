"""A broken variant of the product: a replacement of source text, which fails loudly when the text has changed."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Edit:
    """Replace ``old``, which stands in ``path`` once, by ``new``."""

    path: str
    old: str
    new: str


@dataclass(frozen=True)
class Bug:
    """One broken variant.

    Attributes:
        name: what it does wrong.
        rule: of docs/protocol.md; 0 where it is the protocol itself.
        edits: how it is planted.
        protocol: tests without Spark that catch it, for pytest.
        whole: tests with Spark that catch it. Where neither is given, the rule's own file is to catch it.
        model: whether it lies in code that the model runs.
    """

    name: str
    rule: int
    edits: tuple[Edit, ...]
    protocol: str = ""
    whole: str = ""
    model: bool = True


def one_edit(name: str, rule: int, path: str, old: str, new: str, **where: str | bool) -> Bug:
    """A bug that is planted in one place."""
    return Bug(name, rule, (Edit(path, old, new),), **where)  # type: ignore[arg-type]
