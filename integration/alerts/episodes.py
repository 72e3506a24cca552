"""Report a rule once when it starts to fire, and once when it stops. This module has no threads, clock or I/O."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import msgspec

from twopc.integration.alerts.rules import Facts, duration

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from twopc.integration.alerts.rules import Rule
    from twopc.progress import Checkpoint

#: The format of the data that a webhook receives. Any change other than an additional field requires a new format
#: number.
FORMAT: Final = "twopc-alert/1"
FIRING: Final = "firing"
OVER: Final = "over"
_LINE: Final = 300


class Alert(msgspec.Struct, frozen=True, kw_only=True, tag=FORMAT, tag_field="format"):
    """A notification that a rule has started or stopped firing. As JSON, an alert is the body of a webhook request.

    Attributes:
        rule: the rule's name.
        status: ``firing`` or ``over``.
        query: the user's name for the query, or the query id.
        at_ms: when the check found the rule's new status, in ms since 1970 UTC.
        since_ms: when the episode began, in ms since 1970 UTC.
        text: the reason, in one or more sentences.
        runbook: the runbook entry for this rule.
    """

    rule: str
    status: str
    query: str
    at_ms: int
    since_ms: int
    text: str
    runbook: str


class State(msgspec.Struct, kw_only=True, tag="twopc-alerts/1", tag_field="format"):
    """Records which alerts were sent. This state outlives the process.

    Attributes:
        seen_ms: the end of the newest checkpoint that the rules have judged, in ms since 1970 UTC.
        open: the rules that are firing, each with the time when it started.
    """

    seen_ms: int = 0
    open: dict[str, int] = {}


@dataclass
class Episodes:
    """The rules for one query.

    Args:
        rules: the rules; each has a different name.
        query: the name of the query in alerts. If the name is empty, alerts contain the query id as soon as a checkpoint
            shows the id.
        watched_ms: when the watch began, in ms since 1970 UTC.
        state: the state that an earlier process left.
    """

    rules: Sequence[Rule]
    query: str
    watched_ms: int
    state: State

    def __post_init__(self) -> None:
        self.planned_ms: int | None = None  # see Facts
        self._began_again_ms = 0
        self._failures: list[int] = []
        self._in_a_row = 0
        self._last_failure = ""
        self._completed_ms: int | None = None
        self._checked_ms: dict[str, int] = {}
        self._keeps_ms = max((rule.keeps_s for rule in self.rules), default=0.0) * 1000
        names = {rule.name for rule in self.rules}
        self.state.open = {name: since for name, since in self.state.open.items() if name in names}

    def learn(self, history: Iterable[Checkpoint]) -> None:
        """Record past checkpoints, without sending alerts."""
        for one in history:
            self._take(one)

    def begins_again(self, now_ms: int) -> None:
        """Record a restart after a normal close. The pause before the restart does not count as quiet time."""
        self._began_again_ms = now_ms

    def ended(self, checkpoint: Checkpoint) -> list[Alert]:
        """Judge a checkpoint that has ended, and return the alerts to send."""
        self._take(checkpoint)
        at_ms = ended_ms(checkpoint)
        return [alert for rule in self.rules if not rule.every_s for alert in self._judge(rule, at_ms)]

    def check(self, now_ms: int) -> list[Alert]:
        """Judge the rules that depend on time, and return the alerts to send."""
        return [alert for rule in self.rules if self._is_due(rule, now_ms) for alert in self._judge(rule, now_ms)]

    def firing(self, now_ms: int) -> list[Alert]:
        """Return an alert for each rule that is firing, even if the rule was already reported."""
        facts = self._facts()
        texts = {rule: rule.holds(facts, now_ms) or "" for rule in self.rules if rule.name in self.state.open}
        return [self._alert(rule, FIRING, now_ms, text) for rule, text in texts.items()]

    def _take(self, checkpoint: Checkpoint) -> None:
        at_ms = ended_ms(checkpoint)
        self.query = self.query or checkpoint.query_id
        self.state.seen_ms = max(self.state.seen_ms, at_ms)
        if self._completed_ms is None:
            self.watched_ms = min(self.watched_ms, checkpoint.triggered_ms)
        if checkpoint.cause is None:
            self._completed_ms, self._in_a_row = at_ms, 0
            return
        self._in_a_row += 1
        self._failures = [*(time for time in self._failures if time > at_ms - self._keeps_ms), at_ms]
        line = (checkpoint.cause.message.splitlines() or [""])[0][:_LINE]
        name = f"checkpoint {checkpoint.batch_id} {checkpoint.outcome} in phase {checkpoint.cause.phase or 'start'}"
        self._last_failure = f"Last failure: {name}: {checkpoint.cause.error}: {line}"

    def _facts(self) -> Facts:
        completed_ms = self.watched_ms if self._completed_ms is None else self._completed_ms
        return Facts(
            failures_ms=self._failures,
            in_a_row=self._in_a_row,
            quiet_since_ms=max(completed_ms, self._began_again_ms),
            planned_ms=self.planned_ms,
            last_failure=self._last_failure,
        )

    def _is_due(self, rule: Rule, now_ms: int) -> bool:
        last = self._checked_ms.get(rule.name)
        if (
            last is not None and 0 <= now_ms - last < rule.every_s * 1000
        ):  # after the clock has been set back, the rule must still be checked
            return False
        self._checked_ms[rule.name] = now_ms
        return True

    def _judge(self, rule: Rule, now_ms: int) -> Iterator[Alert]:
        text = rule.holds(self._facts(), now_ms)
        since_ms = self.state.open.get(rule.name)
        if text is not None and since_ms is None:
            self.state.open[rule.name] = now_ms
            yield self._alert(rule, FIRING, now_ms, text)
        elif text is None and since_ms is not None:
            yield self._alert(rule, OVER, now_ms, f"Resolved after {duration((now_ms - since_ms) / 1000)}.")
            del self.state.open[rule.name]

    def _alert(self, rule: Rule, status: str, now_ms: int, text: str) -> Alert:
        return Alert(
            rule=rule.name,
            status=status,
            query=self.query,
            at_ms=now_ms,
            since_ms=self.state.open[rule.name],
            text=text,
            runbook=f"docs/operations.md#{rule.runbook}",
        )


def ended_ms(checkpoint: Checkpoint) -> int:
    """Return the time when a checkpoint ended, in ms since 1970 UTC."""
    return checkpoint.triggered_ms + int(checkpoint.took_ms)
