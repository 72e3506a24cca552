"""Determine why a query's checkpoints are slow or fail: apply every rule to the newest part of the history."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from twopc.integration.history.failing import FAILING
from twopc.integration.history.slow import SLOW
from twopc.integration.history.window import LAST, Window

if TYPE_CHECKING:
    from twopc.integration.history.reader import History

RULES: Final = (*FAILING, *SLOW)


@dataclass(frozen=True)
class Diagnosis:
    """A rule that applies.

    Attributes:
        rule: the rule's name.
        weight: how much of the problem the cause explains, from 0 to 1.
        cause: the cause, in a sentence.
        evidence: the figures.
        advice: what to change.
    """

    rule: str
    weight: float
    cause: str
    evidence: str
    advice: str


def diagnose(history: History, *, last: int = LAST) -> list[Diagnosis]:
    """Find the rules that apply to the newest checkpoints (at most ``last``). The likeliest cause comes first."""
    window = Window(history.checkpoints[-last:])
    found = [
        Diagnosis(rule.name, round(evidence.weight, 3), rule.says, evidence.text, rule.advice)
        for rule in RULES
        if (evidence := rule.find(window)) is not None
    ]
    return sorted(found, key=lambda one: -one.weight)
