"""Try a real two-phase commit: run the sink's code with transactional ids and a topic that no query uses."""

from __future__ import annotations

import traceback
from dataclasses import replace
from typing import TYPE_CHECKING, Final

from twopc.errors import TwoPhaseCommitError
from twopc.integration.preflight.findings import Finding, Result, failed, is_denied
from twopc.integration.preflight.steps import STEPS, rights
from twopc.integration.preflight.trial import Trial

if TYPE_CHECKING:
    from collections.abc import Iterator

    from twopc.integration.preflight.steps import Step
    from twopc.integration.preflight.target import Target

_SUBJECT: Final = "the trial"


def check_protocol(target: Target) -> Iterator[Finding]:
    """Run one batch with a stand-in, step by step, and always remove the stand-in afterward."""
    trial = Trial(target.sink, target.stand_in)
    try:
        for number, step in enumerate(STEPS, start=1):
            finding, continues = _try(trial, step)
            yield finding
            if not continues:
                if untried := ", ".join(later.name for later in STEPS[number:]):
                    fix = f"Fix the problem that {step.name!r} reports, and run the preflight again"
                    yield Finding(
                        "not tried", _SUBJECT, Result.WARN, f"{untried}, because {step.name!r} must succeed first", fix
                    )
                return
    except BaseException as error:  # the traceback would keep producers alive, and they could recreate the topic
        traceback.clear_frames(error.__traceback__)
        raise
    finally:
        trial.clean_up()


def _try(trial: Trial, step: Step) -> tuple[Finding, bool]:
    """Try a step. Return the finding, and whether the next step can be tried."""
    try:
        finding = Finding(step.name, _SUBJECT, *step.run(trial))
    except TwoPhaseCommitError as error:
        finding = failed(step.name, _SUBJECT, error, rights(trial.original))
        if is_denied(error):
            finding = replace(finding, result=step.if_denied)
        return finding, not step.is_needed
    return finding, finding.result is not Result.FAIL or not step.is_needed
