"""Change a broker's metadata, and return when the change is in force.

In KRaft, the controller acknowledges a change when the quorum has stored the change. A broker applies the change later,
when it has read the change from the metadata log (KIP-500). So a client that relies on a change immediately may still
see the earlier state.
"""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any, Final

from confluent_kafka import KafkaError
from confluent_kafka.admin import (
    AclBinding,
    AclBindingFilter,
    AclOperation,
    AclPermissionType,
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    ConfigSource,
    NewPartitions,
    ResourcePatternType,
    ResourceType,
    ScramCredentialInfo,
    ScramMechanism,
    UserScramCredentialUpsertion,
)

from tests.live.rules.schedules import until

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping


_WAIT_S: Final = 120


def admin_of(servers: str) -> AdminClient:
    return AdminClient({"bootstrap.servers": servers, "log_level": 0})


def add_scram_user(servers: str, user: str, password: str) -> None:
    wanted = UserScramCredentialUpsertion(
        user, ScramCredentialInfo(ScramMechanism.SCRAM_SHA_256, 4096), password.encode()
    )
    admin = admin_of(servers)
    admin.alter_user_scram_credentials([wanted])[user].result()

    def is_known() -> bool:
        found: Any = admin.describe_user_scram_credentials([user])
        error = found[user].exception()
        assert error is None or error.args[0].code() == KafkaError.RESOURCE_NOT_FOUND, error
        return error is None

    assert until(is_known, _WAIT_S)


def create_acls(servers: str, bindings: Iterable[AclBinding]) -> None:
    wanted, admin = list(set(bindings)), admin_of(servers)
    for future in (admin.create_acls(wanted) if wanted else {}).values():
        future.result()
    assert until(lambda: set(wanted) <= _acls(admin), _WAIT_S)


@contextlib.contextmanager
def with_acl(servers: str, binding: AclBinding) -> Iterator[None]:
    """An ACL exists while the body runs."""
    admin = admin_of(servers)
    create_acls(servers, [binding])
    try:
        yield
    finally:
        same = AclBindingFilter(
            binding.restype,
            binding.name,
            binding.resource_pattern_type,
            binding.principal,
            binding.host,
            binding.operation,
            binding.permission_type,
        )
        admin.delete_acls([same])[same].result()
        assert until(lambda: binding not in _acls(admin), _WAIT_S)


def alter_topic(servers: str, topic: str, settings: Mapping[str, str | None]) -> None:
    """Set a topic's options, or delete those whose value is None."""
    admin, resource = admin_of(servers), ConfigResource(ResourceType.TOPIC, topic)
    entries = [
        ConfigEntry(
            name,
            value,
            incremental_operation=AlterConfigOpType.DELETE if value is None else AlterConfigOpType.SET,
        )
        for name, value in settings.items()
    ]
    changed = ConfigResource(ResourceType.TOPIC, topic, incremental_configs=entries)
    admin.incremental_alter_configs([changed])[changed].result()

    def is_applied() -> bool:
        found = admin.describe_configs([resource])[resource].result()
        return all(
            (found[name].source != ConfigSource.DYNAMIC_TOPIC_CONFIG.value)
            if value is None
            else found[name].value == value
            for name, value in settings.items()
        )

    assert until(is_applied, _WAIT_S)


def add_partitions(servers: str, topic: str, count: int) -> None:
    """Raise a topic's number of partitions to *count*."""
    admin = admin_of(servers)
    admin.create_partitions([NewPartitions(topic, count)])[topic].result()
    assert until(lambda: len(admin.list_topics(topic).topics[topic].partitions) == count, _WAIT_S)


def delete_topic(servers: str, topic: str) -> None:
    admin = admin_of(servers)
    admin.delete_topics([topic])[topic].result()
    assert until(lambda: topic not in admin.list_topics(timeout=30).topics, _WAIT_S)


def _acls(admin: AdminClient) -> set[AclBinding]:
    filter_of: Any = AclBindingFilter  # its declared types do not allow None, which means any
    anything = filter_of(
        ResourceType.ANY, None, ResourcePatternType.ANY, None, None, AclOperation.ANY, AclPermissionType.ANY
    )
    return set(admin.describe_acls(anything).result())
