"""List the checks, in the order in which the printed table shows them.

To add a check, write a function that takes the target and yields findings, and add the function to ``CHECKS``.
"""

from __future__ import annotations

import contextlib
import logging
from typing import TYPE_CHECKING, Final, NamedTuple

from twopc.errors import TwoPhaseCommitError
from twopc.integration.preflight.apis import check_apis
from twopc.integration.preflight.findings import Finding, Result, failed
from twopc.integration.preflight.ledger import check_ledger, check_start, check_transaction_log
from twopc.integration.preflight.protocol import check_protocol
from twopc.integration.preflight.topics import check_outputs
from twopc.sinks.kafka import ledger_topic

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from twopc.integration.preflight.target import Target


class Check(NamedTuple):
    """One check, with ``tries`` set if the check sends the requests that :func:`check_apis` looks for."""

    name: str
    run: Callable[[Target], Iterator[Finding]]
    tries: bool = True


#: As in a query, the check "start" comes before the check "ledger". On a new cluster, "start" makes
#: the brokers create ``__transaction_state``, and the ledger then gets that topic's replication factor.
CHECKS: Final = (
    Check("start", check_start),
    Check("transaction log", check_transaction_log, tries=False),
    Check("ledger", check_ledger),
    Check("own topic", check_protocol),
    Check("output topic", check_outputs, tries=False),
)


def findings_of(target: Target, further: Sequence[Check] = ()) -> tuple[Finding, ...]:
    """Run every check whose requests the brokers accept.

    Each warning that the sink logs during the checks also becomes a finding. The ``further`` checks come from another
    command and run last.
    """
    found = list(check_apis(target))
    lacks = any(finding.result is Result.FAIL for finding in found)
    with _warnings() as warnings:
        for check in (*CHECKS, *further):
            if check.tries and lacks:
                continue
            try:
                found.extend(check.run(target))
            except TwoPhaseCommitError as error:  # a check that cannot finish must not hide the other checks' findings
                found.append(
                    failed(check.name, target.sink.name, error, "Grant the permissions that docs/security.md lists")
                )
    if lacks:
        why = (
            "the sink's startup, its ledger and a two-phase commit were not checked, because they need a request that "
            "a broker rejects"
        )
        found.append(Finding("not tried", target.sink.name, Result.WARN, why, FIX_REQUESTS))
    for record in warnings:
        text = record.getMessage()
        if record.name == ledger_topic.__name__:
            named = text.replace(target.stand_in.ledger, target.sink.ledger)
            found.append(Finding("sink", target.sink.name, Result.WARN, named, _FIX))
        else:
            found.append(Finding("clean-up", target.stand_in.name, Result.WARN, text, _REMOVE))
    return tuple(dict.fromkeys(found))


FIX_REQUESTS: Final = "Fix the problem that 'requests' reports, and run the preflight again"
_FIX: Final = (
    "The sink logs this warning at each startup. Fix the setting or grant the permission that the warning names"
)
_REMOVE: Final = "No query uses this topic or transaction. If a topic does not disappear on its own, delete it"


@contextlib.contextmanager
def _warnings() -> Iterator[list[logging.LogRecord]]:
    """Collect the sink's warnings about topic settings, and the preflight's warnings about leftover topics."""
    records: list[logging.LogRecord] = []

    class Collector(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            records.append(record)

    collector = Collector(logging.WARNING)
    loggers = [logging.getLogger(name) for name in (ledger_topic.__name__, "twopc.integration.preflight")]
    for logger in loggers:
        logger.addHandler(collector)
    try:
        yield records
    finally:
        for logger in loggers:
            logger.removeHandler(collector)
