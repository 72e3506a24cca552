"""Run ``twopc migrate cutover``, ``rollback`` and ``probe`` with parsed options. Print the result and return the exit status."""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import TYPE_CHECKING, Any, Final

import msgspec
import typer

from twopc.counted import counted
from twopc.integration.migrate.cutover import find, record
from twopc.integration.migrate.handover import Kind
from twopc.integration.migrate.place import opened
from twopc.integration.migrate.probe import probe
from twopc.integration.migrate.rollback import roll_back
from twopc.integration.preflight.findings import Result
from twopc.integration.reported import reported
from twopc.integration.verify.expressions import ExpressionError

if TYPE_CHECKING:
    from collections.abc import Callable

    from twopc.integration.migrate.cutover import Cutover, Found
    from twopc.integration.migrate.probe import Probe
    from twopc.integration.migrate.rollback import WayBack
    from twopc.sinks.kafka import KafkaSink

_DONE: Final = 0
_NOT_DONE: Final = 2
#: The exit statuses are the same as for ``twopc preflight``.
_BY_RESULT: Final = {Result.PASS: 0, Result.WARN: 3, Result.FAIL: 1}


def cut_over(checkpoint: str, wanted: Cutover, sink: Callable[[], KafkaSink], *, is_dry: bool, as_json: bool) -> int:
    """Find the hand-over, and record it unless this is a dry run. Return the exit status."""

    def act() -> tuple[dict[str, Any], list[str]]:
        with opened(checkpoint) as place:
            found = find(wanted, place, sink())
            file = None if is_dry else record(found, place)
        facts = {
            "handover": msgspec.to_builtins(found.handover),
            "source_records": found.source_records,
            "output_records": found.tally.exact,
            "records_just_before": found.tally.before,
            "repeated": found.tally.repeated,
            "unidentified": found.tally.unidentified,
            "was_recorded": found.was_recorded,
            "recorded": file,
        }
        return facts, _lines(found, file)

    return _run("cutover", act, as_json=as_json)


def roll_back_to_old(checkpoint: str, sink: Callable[[], KafkaSink], *, as_json: bool) -> int:
    """Roll back to the old sink, and return the exit status."""

    def act() -> tuple[dict[str, Any], list[str]]:
        with opened(checkpoint) as place:
            found = roll_back(place, sink())
        facts = {"handover": msgspec.to_builtins(found.handover), "decided": found.decided}
        return {**facts, "not_reached": list(found.not_reached)}, _way_back(found)

    return _run("rollback", act, as_json=as_json)


def probe_group(wanted: Probe, sink: Callable[[], KafkaSink], *, as_json: bool) -> int:
    """Test whether a consumer group reads only committed records, and return the exit status."""
    worst = Result.PASS

    def act() -> tuple[dict[str, Any], list[str]]:
        nonlocal worst
        found = probe(wanted, sink(), lambda text: typer.echo(text, err=True))
        worst = max((one.result for one in found.findings), key=tuple(Result).index)
        findings = [{**asdict(one), "result": one.result.value} for one in found.findings]
        facts = {"result": worst.value, "group": wanted.group, "topic": found.topic, "findings": findings}
        lines = [f"{one.result.value}  {one.subject}: {one.why}. {one.fix}".rstrip() for one in found.findings]
        return {**facts, "left_behind": found.left_behind}, [*lines, f"Left behind: {found.left_behind}."]

    return _run("probe", act, as_json=as_json) or _BY_RESULT[worst]


def _run(name: str, act: Callable[[], tuple[dict[str, Any], list[str]]], *, as_json: bool) -> int:
    def answered() -> int:
        facts, lines = act()
        typer.echo(json.dumps(facts) if as_json else "\n".join(lines))
        return _DONE

    return reported(
        f"migrate {name}", answered, not_done=_NOT_DONE, expected={ExpressionError: _NOT_DONE, OSError: _NOT_DONE}
    )


def _lines(found: Found, file: str | None) -> list[str]:
    handover = found.handover
    batch = handover.batch_id
    if handover.kind is Kind.NOTHING:
        lines = [
            f"No batch is unfinished. Batch {batch} is done, and the transactional sink begins with batch {batch + 1}."
        ]
    else:
        source = "" if found.source_records is None else f", with {counted(found.source_records, 'source record')},"
        since, before = (counted(one, "record was", "records were") for one in (found.tally.exact, found.tally.before))
        lines = [
            (
                f"Batch {batch}{source} is unfinished. Spark has planned this batch, but has not recorded the batch as "
                "done."
            ),
            f"Since Spark planned the batch, {since} written, {found.tally.repeated} of them duplicates.",
            f"In the {handover.clock_skew_ms} ms before Spark planned the batch, {before} written.",
        ]
        deleted = [
            f"{topic}[{number}]"
            for topic, partitions in handover.topics.items()
            for number, bounds in partitions.items()
            if bounds.follows_deletion
        ]
        if deleted:
            lines.append(
                f"The broker has deleted records from {', '.join(deleted)}, and has kept none from before the batch. If it has "
                "also deleted rows of the batch, TakeOver writes these rows again."
            )
        if unidentified := found.tally.unidentified:
            lines.append(f"{counted(unidentified, 'record has', 'records have')} no {handover.key}.")
    if file is None:
        return [*lines, "This was a dry run, and nothing was written. Add --apply to hand the batch over."]
    return [
        *lines,
        f"The hand-over is recorded in {file}.",
        (
            "Start the new query with exactly_once(sink, interceptors=[TakeOver(sink)], override=AdoptQuery("
            f"{handover.query_id!r}))."
        ),
        (
            "If the sink has used this checkpoint before, set override=ResumeAt("
            f"{batch + (handover.kind is Kind.NOTHING)}, {handover.query_id!r}) instead."
        ),
    ]


def _way_back(found: WayBack) -> list[str]:
    batch, last = found.handover.batch_id, found.decided
    if found.not_reached:
        return [
            f"No batch is unfinished. If the transactional query has ended, the old sink begins with batch {batch + 1}.",
            (
                f"The command cannot reach {' and '.join(found.not_reached)}, so it has not fenced the transactional query. If "
                "this query had ended before you ran this command, start the old query, which does not need TakeOver. Otherwise, "
                "do not start the old query yet. The transactional query may have begun another batch since then, and the "
                "old query would write that batch again. Stop the transactional query, and run this command again."
            ),
        ]
    lines = [
        "The transactional query is fenced. Decided rows are visible, and the query's other transactions are aborted."
    ]
    if last is not None:
        lines.append(
            f"The last batch that the transactional query handled is batch {last}: it decided this batch, or left it "
            "to the old sink."
        )
    what = {
        Kind.WHOLE: f"All of batch {batch} is in the output. TakeOver prevents the old sink from writing the batch again.",
        Kind.REST: f"Only part of batch {batch} is in the output. TakeOver passes the rest to the old sink.",
        Kind.NOTHING: f"The old sink begins with batch {batch + 1}.",
    }
    start = "Start the old query with foreachBatch(intercepted(old_function, TakeOver(sink)))."
    return [*lines, what[found.handover.kind], start]
