"""Principals with chosen rights on a broker with TLS, SASL/SCRAM and ACLs, and the table of rights in docs/security.md."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

from confluent_kafka.admin import (
    AclBinding,
    AclOperation,
    AclPermissionType,
    ResourcePatternType,
    ResourceType,
)

from tests.live.broker_changes import create_acls
from twopc.sinks.kafka.ledger_topic import TRANSACTION_LOG

if TYPE_CHECKING:
    from collections.abc import Iterable

    from twopc.integration.services.kafka import LocalKafka
    from twopc.sinks.kafka import KafkaSink

#: A user that exists when the broker starts.
USER, PASSWORD = "ann", "a pass, word=1"
#: Secrets that must not appear anywhere: a user's password, and the password of the client's key, which is stored next
#: to the authority's file.
CANARY_USER, CANARY_PASSWORD, KEY_PASSWORD = "tweety", "canary-Password-91c4e7", "canary-Key-7f31d2b8"
LITERAL, PREFIXED = ResourcePatternType.LITERAL, ResourcePatternType.PREFIXED
_PAGE: Final = Path(__file__).parents[2] / "docs" / "security.md"
_ROW: Final = re.compile(
    r"^\| ([\w ]+) \| (\w[\w ]*?)(?: `([^`]+)`)?(\\\*| \\\*)? \| ([A-Za-z, ]+) \| (stops|warns)(.*) \|$", re.MULTILINE
)
_KINDS: Final = {
    "transactional ids": ResourceType.TRANSACTIONAL_ID,
    "topic": ResourceType.TOPIC,
    "group": ResourceType.GROUP,
    "cluster": ResourceType.BROKER,
}


@dataclass(frozen=True)
class Right:
    """One of a role's rights, as the table lists it."""

    role: str
    on: str  #: the kind of resource
    name: str  #: the resource's name
    right: str
    stops: bool  #: whether the part fails without the right, instead of only warning

    def __str__(self) -> str:
        return f"{self.role}: {self.right} on {self.on} {self.name}".strip()

    def includes(self, other: Right) -> bool:
        """Whether a principal with this right also has the other one. Read and Write include Describe (``AclAuthorizer``)."""
        is_same_place = (self.on, self.name) == (other.on, other.name)
        return is_same_place and (
            self.right == other.right or (other.right == "Describe" and self.right in {"Read", "Write"})
        )

    def named(self, name: str, topic: str) -> Right:
        """Return this right for a sink and an output topic other than those on the page."""
        found = self.name.replace("orders-enriched", topic)
        found = re.sub(r"^(twopc-ledger-)?orders(\.?)$", rf"\g<1>{name}\g<2>", found)
        return Right(self.role, self.on, found, self.right, self.stops)

    def binding(self, user: str, pattern: ResourcePatternType | None = None) -> AclBinding:
        if self.on == "transactional ids":
            pattern = PREFIXED
        name = {"group": "*", "cluster": "kafka-cluster"}.get(self.on, self.name)
        operation = AclOperation[re.sub(r"(?<=[a-z])([A-Z])", r"_\1", self.right).upper()]
        kind = _KINDS[self.on]
        return AclBinding(kind, name, pattern or LITERAL, f"User:{user}", "*", operation, AclPermissionType.ALLOW)


def documented() -> list[Right]:
    """The table's rights."""
    found = _ROW.findall(_PAGE.read_text())
    return [
        Right(role, on, name, right.strip(), outcome == "stops")
        for role, on, name, _, rights, outcome, _ in found
        for right in rights.split(",")
    ]


def documented_rights(
    sink: KafkaSink, topic: str, *, with_trial: bool = False
) -> list[tuple[ResourceType, str, ResourcePatternType, AclOperation]]:
    """The rights that a query needs; ``with_trial``: also those of a preflight."""
    on_ledger = ("CREATE", "READ", "WRITE", "DESCRIBE", "DESCRIBE_CONFIGS", "DELETE")
    trial = {(ResourceType.TOPIC, f"{sink.ledger}.preflight-", PREFIXED): on_ledger} if with_trial else {}
    on = {
        **trial,
        (ResourceType.TOPIC, sink.ledger, LITERAL): on_ledger,
        (ResourceType.TOPIC, topic, LITERAL): ("WRITE", "DESCRIBE"),
        (ResourceType.TOPIC, TRANSACTION_LOG, LITERAL): ("DESCRIBE", "DESCRIBE_CONFIGS"),
        (ResourceType.TRANSACTIONAL_ID, f"{sink.name}.", PREFIXED): ("WRITE", "DESCRIBE"),
    }
    return [(*where, AclOperation[right]) for where, rights in on.items() for right in rights]


def allow(kafka: LocalKafka, rights: Iterable[tuple[ResourceType, str, ResourcePatternType, AclOperation]]) -> None:
    """Allow the user these operations."""
    create_acls(
        kafka.bootstrap_servers,
        [
            AclBinding(kind, name, pattern, f"User:{USER}", "*", operation, AclPermissionType.ALLOW)
            for kind, name, pattern, operation in rights
        ],
    )
