"""Check that every broker accepts the requests that the sink's two clients send."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, NamedTuple

from kafka.protocol.api_key import ApiKey
from kafka.protocol.metadata import ApiVersionsRequest

from twopc.integration.preflight.findings import Finding, Result

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from twopc.integration.preflight.target import Target

_CHECK: Final = "requests"
_ANY: Final = 32_767


class Need(NamedTuple):
    """A request that the sink needs, and a range of versions. A broker must accept at least one version in the range."""

    api: ApiKey
    lowest: int
    highest: int
    why: str
    if_absent: Result = Result.FAIL


#: Sources: KIP-98 (transactions), KIP-360 (InitProducerId v3), KIP-664 (DescribeTransactions, ListTransactions,
#: DescribeProducers), KIP-516 (Metadata v10). ``twopc.sinks.kafka.transactions`` says which versions the sink sends.
NEEDS: Final = (
    Need(ApiKey.Produce, 3, _ANY, "records of a transaction"),
    Need(ApiKey.Fetch, 4, _ANY, "read_committed"),
    Need(ApiKey.ListOffsets, 2, _ANY, "the last stable offset"),
    Need(ApiKey.Metadata, 10, _ANY, "the topic id, which shows that a ledger was recreated", Result.WARN),
    Need(ApiKey.CreateTopics, 0, _ANY, "creating the ledger and the trial's topic", Result.WARN),
    Need(ApiKey.DescribeConfigs, 1, _ANY, "the ledger's settings"),
    Need(ApiKey.DeleteRecords, 0, _ANY, "truncating the ledger", Result.WARN),
    Need(ApiKey.FindCoordinator, 1, _ANY, "the coordinators of transactional ids"),
    Need(ApiKey.InitProducerId, 3, 4, "fencing one producer of a transactional id"),
    Need(ApiKey.AddPartitionsToTxn, 0, _ANY, "transactions"),
    Need(ApiKey.EndTxn, 0, 3, "a commit that can be retried"),
    Need(ApiKey.DescribeTransactions, 0, 0, "confirming a transaction before the decision"),
    Need(ApiKey.ListTransactions, 0, _ANY, "finding the transactions of a dead driver"),
    Need(
        ApiKey.DescribeProducers,
        0,
        _ANY,
        "noticing after a crash that a partition no longer contains a decided transaction",
        Result.WARN,
    ),
)


def check_apis(target: Target) -> Iterator[Finding]:
    """Check the brokers' ApiVersions responses: every broker must offer the requests that the sink needs."""
    nodes = target.brokers.nodes
    requests = [
        (ApiVersionsRequest(client_software_name="twopc", client_software_version="preflight"), node) for node in nodes
    ]
    answers = dict(zip(nodes, target.brokers.send_all(requests), strict=True))
    silent = [node for node, answer in answers.items() if isinstance(answer, Exception) or answer.error_code]
    if silent:
        yield Finding(
            _CHECK,
            _brokers(silent),
            Result.FAIL,
            "the broker did not respond to ApiVersions",
            "Start the broker, or check the address that it advertises to clients (advertised.listeners)",
        )
    offers = {node: _offered(answer) for node, answer in answers.items() if node not in silent}
    lacking = [(need, [node for node, offer in offers.items() if not _takes(offer, need)]) for need in NEEDS]
    for need, nodes in lacking:
        if nodes:
            fix = _OLD_FORMAT if _has_old_format(offers[nodes[0]]) else _FIX
            yield Finding(_CHECK, _brokers(nodes), need.if_absent, _why_lacking(need, offers[nodes[0]]), fix)
    if not any(nodes for _, nodes in lacking) and offers:
        yield Finding(
            _CHECK, _brokers(offers), Result.PASS, f"each broker accepts the {len(NEEDS)} requests that the sink sends"
        )


_FIX: Final = "Use Kafka 3.0 or newer, or a Kafka service that accepts this request"
_OLD_FORMAT: Final = (
    "The broker writes messages in the Kafka 0.10 format, which does not support transactions. To finish the brokers' "
    "upgrade, raise inter.broker.protocol.version and log.message.format.version"
)


def _has_old_format(offer: Mapping[int, tuple[int, int]]) -> bool:
    """Whether a broker is new enough for transactions, but hides the requests for transactions.

    A broker hides these requests while its message format is older than 0.11. Source:
    ``ApiKeys.minRequiredInterBrokerMagic`` in Kafka 3.x.
    """
    return ApiKey.ListTransactions in offer and ApiKey.InitProducerId not in offer


def _offered(answer: Any) -> dict[int, tuple[int, int]]:
    return {row.api_key: (row.min_version, row.max_version) for row in answer.api_keys}


def _takes(offer: Mapping[int, tuple[int, int]], need: Need) -> bool:
    low, high = offer.get(need.api, (_ANY + 1, -1))
    return low <= need.highest and high >= need.lowest


def _why_lacking(need: Need, offer: Mapping[int, tuple[int, int]]) -> str:
    found = offer.get(need.api)
    has = "does not accept it" if found is None else f"accepts versions {found[0]} to {found[1]}"
    wanted = (
        f"version {need.lowest} or newer" if need.highest == _ANY else f"a version from {need.lowest} to {need.highest}"
    )
    return f"{need.api.name} ({wanted}) is needed for {need.why}, but the broker {has}"


def _brokers(nodes: Any) -> str:
    return f"broker {', '.join(str(node) for node in sorted(nodes))}"
