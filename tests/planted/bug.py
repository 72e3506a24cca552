"""A broken variant of the product, as a replacement of source text that fails if the text has changed."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Edit:
    """Replace ``old``, which occurs exactly once in ``path``, by ``new``."""

    path: str
    old: str
    new: str


@dataclass(frozen=True)
class Bug:
    """One broken variant.

    Attributes:
        name: what the variant does wrong.
        rule: number of the rule in docs/protocol.md; 0 for the protocol itself.
        edits: the replacements that plant it.
        protocol: pytest arguments for tests without Spark that catch it.
        whole: the same for tests with Spark. Without either, the rule's own test file must catch it.
        model: whether the model runs the changed code.
    """

    name: str
    rule: int
    edits: tuple[Edit, ...]
    protocol: str = ""
    whole: str = ""
    model: bool = True


def one_edit(name: str, rule: int, path: str, old: str, new: str, **where: str | bool) -> Bug:
    """A bug with a single edit."""
    return Bug(name, rule, (Edit(path, old, new),), **where)  # type: ignore[arg-type]
