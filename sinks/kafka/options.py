"""librdkafka's options, as a user gives them (``kafka.`` prefix as in Spark), for the two clients that share them.

The rows and the decisions go through librdkafka; commits of other processes' transactions through kafka-python
(``sinks.kafka.transactions``). What concerns the connection must hold for both, so an option that the second cannot
honour is refused by name instead of being dropped.

Source of the names: librdkafka's CONFIGURATION.md.
"""

from __future__ import annotations

import ssl
from typing import TYPE_CHECKING, Any, Final

import confluent_kafka

from twopc.errors import ConfigurationError

if TYPE_CHECKING:
    from collections.abc import Mapping

PREFIX: Final = "kafka."
#: The broker's own default maximum (transaction.max.timeout.ms); librdkafka's default of 60 s loses more (rule 9).
DEFAULT_TRANSACTION_TIMEOUT_MS: Final = 900_000

_OWNED: Final = {
    "transactional.id": "it names the sink's incarnation, worker and batch",
    "enable.idempotence": "transactions need it",
    "enable.gapless.guarantee": "a lost record must fail the transaction, not the producer",
    "acks": "transactions need acks=all",
    "request.required.acks": "transactions need acks=all",
    "max.in.flight": "idempotence bounds it",
    "max.in.flight.requests.per.connection": "idempotence bounds it",
    "retries": "idempotence makes retries safe; only the transaction's time bounds them",
    "message.send.max.retries": "idempotence makes retries safe; only the transaction's time bounds them",
    "delivery.report.only.error": "votes count delivery errors",
    "dr_cb": "votes count delivery errors",
    "dr_msg_cb": "votes count delivery errors",
    "on_delivery": "votes count delivery errors",
    "statistics.interval.ms": "the producer's identity is read from the statistics",
    "stats_cb": "the producer's identity is read from the statistics",
    "error_cb": "errors are turned into the query's",
    "bootstrap.servers": "it is the argument bootstrap_servers",
    "metadata.broker.list": "it is the argument bootstrap_servers",
    "isolation.level": "the ledger is read with read_committed",
    "delivery.timeout.ms": "it must not exceed the transaction's time: set kafka.transaction.timeout.ms",
    "message.timeout.ms": "it must not exceed the transaction's time: set kafka.transaction.timeout.ms",
}
#: Connection options that kafka-python takes under another name.
_RENAMED: Final = {
    "client.id": "client_id",
    "security.protocol": "security_protocol",
    "sasl.mechanism": "sasl_mechanism",
    "sasl.mechanisms": "sasl_mechanism",
    "sasl.username": "sasl_plain_username",
    "sasl.password": "sasl_plain_password",
    "sasl.kerberos.service.name": "sasl_kerberos_service_name",
}
#: Connection options that go into the ssl.SSLContext which kafka-python takes.
_TLS: Final = frozenset(
    {
        "ssl.ca.location",
        "ssl.ca.pem",
        "ssl.certificate.location",
        "ssl.key.location",
        "ssl.key.password",
        "ssl.crl.location",
        "ssl.cipher.suites",
        "ssl.endpoint.identification.algorithm",
        "enable.ssl.certificate.verification",
    }
)
_MECHANISMS: Final = frozenset({"PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512", "GSSAPI"})


def parse(options: Mapping[str, Any]) -> dict[str, Any]:
    """Check a user's options; returns them without the prefix.

    Raises:
        ConfigurationError: an option without the prefix, one that the protocol owns, one that librdkafka does not know
            or refuses, or a connection option that the committing client cannot honour.
    """
    parsed: dict[str, Any] = {}
    for name, value in options.items():
        if not name.startswith(PREFIX):
            raise ConfigurationError(f"option {name!r}: options are librdkafka's with the prefix 'kafka.', as in Spark")
        bare = name.removeprefix(PREFIX)
        if bare in _OWNED:
            raise ConfigurationError(f"option {name!r} is the protocol's own: {_OWNED[bare]}. Remove it")
        if bare == "partitioner.class" or bare.endswith((".serializer", ".deserializer")):
            raise ConfigurationError(f"option {name!r} is one of the Java client: rows arrive as bytes. Remove it")
        parsed[bare] = value if callable(value) else str(value).lower() if isinstance(value, bool) else str(value)
    _require_committable(parsed)
    _require_known(parsed)
    return parsed


def _require_committable(parsed: Mapping[str, Any]) -> None:
    for name, value in parsed.items():
        connection = name.startswith(("ssl.", "sasl.", "https.ca")) or name in {"oauth_cb", "connect_cb", "resolve_cb"}
        if connection and name not in _RENAMED and name not in _TLS:
            raise ConfigurationError(
                f"option 'kafka.{name}' cannot be honoured by the client that commits prepared transactions; it knows "
                f"{', '.join(sorted(n for n in (*_RENAMED, *_TLS) if n.startswith(('ssl.', 'sasl.'))))}"
            )
        if name in {"sasl.mechanism", "sasl.mechanisms"} and str(value).upper() not in _MECHANISMS:
            raise ConfigurationError(
                f"option 'kafka.{name}': {value!r} cannot be honoured by the client that commits prepared transactions; "
                f"use one of {', '.join(sorted(_MECHANISMS))}"
            )


def _require_known(parsed: Mapping[str, Any]) -> None:
    try:
        # Without bootstrap.servers it connects to nothing.
        confluent_kafka.Producer({**producer_config("", parsed), "transactional.id": "check", "log_level": 0})
    except (confluent_kafka.KafkaException, TypeError, ValueError) as error:
        reason = error.args[0].str() if isinstance(error, confluent_kafka.KafkaException) else str(error)
        raise ConfigurationError(f"librdkafka refuses the options {sorted(parsed)}: {reason}") from error


def transaction_timeout_ms(parsed: Mapping[str, Any]) -> int:
    """How long the broker lets a transaction stay open."""
    return int(parsed.get("transaction.timeout.ms", DEFAULT_TRANSACTION_TIMEOUT_MS))


def producer_config(bootstrap_servers: str, parsed: Mapping[str, Any]) -> dict[str, Any]:
    """What every producer of the toolkit starts from."""
    return {
        # Java's placement, so that keys stay where Spark's own sink put them.
        "partitioner": "murmur2_random",
        "linger.ms": "5",
        # Bounds a task's memory; librdkafka's default is 1 GiB.
        "queue.buffering.max.kbytes": "32768",
        "queue.buffering.max.messages": "200000",
        # How long an unknown topic may take to appear before its records fail; librdkafka's default is 30 s.
        "topic.metadata.propagation.max.ms": "10000",
        **parsed,
        "bootstrap.servers": bootstrap_servers,
        "transaction.timeout.ms": str(transaction_timeout_ms(parsed)),
        # A record that cannot be delivered while its transaction lives never can.
        "message.timeout.ms": str(transaction_timeout_ms(parsed)),
        "enable.idempotence": "true",
        "acks": "all",
    }


def connection_config(bootstrap_servers: str, parsed: Mapping[str, Any]) -> dict[str, Any]:
    """For librdkafka clients that read or administrate: the connection options only."""
    connection = {n: v for n, v in parsed.items() if n in _RENAMED or n in _TLS or n.startswith(("socket.", "broker."))}
    return {**connection, "bootstrap.servers": bootstrap_servers}


def committing_config(bootstrap_servers: str, parsed: Mapping[str, Any]) -> dict[str, Any]:
    """The same connection for kafka-python.

    Raises:
        ConfigurationError: a certificate or key cannot be read.
    """
    config: dict[str, Any] = {"bootstrap_servers": [server.strip() for server in bootstrap_servers.split(",")]}
    config |= {_RENAMED[name]: value for name, value in parsed.items() if name in _RENAMED}
    protocol = str(config.get("security_protocol", "PLAINTEXT")).upper()
    config["security_protocol"] = protocol
    if "sasl_mechanism" in config:
        config["sasl_mechanism"] = str(config["sasl_mechanism"]).upper()
    elif protocol.startswith("SASL"):
        config["sasl_mechanism"] = "GSSAPI"  # librdkafka's default
    if protocol.endswith("SSL"):
        config["ssl_context"] = _tls_context(parsed)
    return config


def _tls_context(parsed: Mapping[str, Any]) -> ssl.SSLContext:
    try:
        context = ssl.create_default_context(cafile=parsed.get("ssl.ca.location"), cadata=parsed.get("ssl.ca.pem"))
        if parsed.get("ssl.crl.location"):
            context.load_verify_locations(parsed["ssl.crl.location"])
            context.verify_flags |= ssl.VERIFY_CRL_CHECK_LEAF
        if parsed.get("ssl.certificate.location"):
            context.load_cert_chain(
                parsed["ssl.certificate.location"], parsed.get("ssl.key.location"), parsed.get("ssl.key.password")
            )
        if parsed.get("ssl.cipher.suites"):
            context.set_ciphers(parsed["ssl.cipher.suites"])
    except (OSError, ssl.SSLError) as error:
        named = {name: value for name, value in parsed.items() if name.endswith(".location")}
        raise ConfigurationError(f"the TLS files {named} cannot be loaded: {error}") from error
    if parsed.get("enable.ssl.certificate.verification", "true") == "false":
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    elif parsed.get("ssl.endpoint.identification.algorithm", "https") == "none":
        context.check_hostname = False
    return context
