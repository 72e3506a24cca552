"""Provide the connection that commits prepared transactions. No other module uses kafka-python's internals.

librdkafka cannot resume a transaction that another process prepared, and kafka-python's public API cannot end a
transaction. Requests therefore use the private ``_manager`` of kafka-python's admin client. For this reason,
kafka-python is pinned to 3.0.x.
"""

from __future__ import annotations

import logging
import math
from contextlib import suppress
from itertools import cycle
from typing import TYPE_CHECKING, Any, Final

import kafka.errors as kafka_errors
from kafka.admin import KafkaAdminClient
from kafka.cluster import get_ip_port_afi
from kafka.net.compat import KafkaNetClient
from kafka.net.sasl.oauth import AbstractTokenProvider
from kafka.protocol.sasl import SaslAuthenticateRequest, SaslAuthenticateResponse, SaslBytesRequest, SaslBytesResponse

from twopc.errors import ConfigurationError, TwoPhaseCommitError, UnavailableError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from twopc.sinks.kafka.oauth import Granted, Tokens

logger = logging.getLogger(__name__)

_BOOTSTRAP_TIMEOUT_MS: Final = 30_000
#: The kafka-python timeouts (``KafkaConnectionManager.DEFAULT_CONFIG``). The admin client of kafka-python does not accept these
#: options.
_SETUP_TIMEOUTS_MS: Final = {
    "socket_connection_setup_timeout_ms": 10_000,
    "socket_connection_setup_timeout_max_ms": 30_000,
}
#: If there are several servers, the rounds share the time in these proportions. The first rounds are short, so silent
#: servers cost little time.
_ROUNDS: Final = (1, 2, 4)
#: A request to all brokers may miss a broker that joined within this time (a rolling restart). The kafka-python default
#: is 5 minutes.
_METADATA_MAX_AGE_MS: Final = 30_000
#: How long to wait before a request is sent again after a broker has throttled the connection.
_THROTTLE_POLL_S: Final = 0.02
_NOT_READY: Final = kafka_errors.NodeNotReadyError
_SASL: Final = (SaslAuthenticateRequest, SaslAuthenticateResponse, SaslBytesRequest, SaslBytesResponse)


class _WithoutSecrets(logging.Filter):
    """Suppresses debug lines in which kafka-python logs settings, SASL messages or raw bytes, which may contain secrets."""

    def filter(self, record: logging.LogRecord) -> bool:
        """Return whether the line may be logged."""
        if record.levelno > logging.DEBUG:
            return True
        is_secret = "configuration" in str(record.msg) or any(
            isinstance(part, (*_SASL, bytes, bytearray, memoryview)) for part in record.args or ()
        )
        return not is_secret


#: The loggers of kafka-python 3.0 that log settings, or the data that is sent or received.
for _name in ("kafka.net.connection", "kafka.protocol.parser", "kafka.admin.client"):
    logging.getLogger(_name).addFilter(_WithoutSecrets())


class BrokerConnection:
    """Connects to one cluster's brokers. Threads may share this object, because requests run on the admin client's thread."""

    def __init__(self, config: Mapping[str, Any]) -> None:
        """Connect.

        Raises:
            UnavailableError: no broker responds.
            ConfigurationError: a connection option is wrong.
            TwoPhaseCommitError: no token for SASL/OAUTHBEARER is available.
        """
        tokens = config.get("sasl_oauth_token_provider")
        if tokens is not None:
            tokens()  # raises the error, which the client would only log until its timeout
            config = {**config, "sasl_oauth_token_provider": _TokenProvider(tokens)}
        try:
            self.admin = _open_in_turn(config)
        except (kafka_errors.KafkaError, ValueError, OSError) as error:
            raise _unreachable(config, error) from error
        self._manager: Any = self.admin._manager  # noqa: SLF001 - see the module's docstring

    def close(self) -> None:
        """Close the connections."""
        self.admin.close()

    @property
    def cluster_id(self) -> str:
        """The cluster's id."""
        return str(self._manager.cluster.cluster_id)

    @property
    def nodes(self) -> list[int]:
        """The ids of the known brokers."""
        return [broker.node_id for broker in self._manager.cluster.brokers()]

    @property
    def broker_version(self) -> str:
        """The Kafka version of the first broker that responded. kafka-python infers the version from the protocol."""
        return str(self._manager.broker_version_data.broker_version_str)

    def does_not_know(self, request: Any, *, min_version: int = 0) -> bool:
        """Return True unless kafka-python and the first broker share a request version of at least ``min_version``."""
        try:
            self._manager.broker_version_data.api_version(request, min_version=min_version)
        except kafka_errors.IncompatibleBrokerVersion:
            return True
        return False

    def send_all(self, requests: Sequence[tuple[Any, ...]]) -> list[Any]:
        """Send all requests concurrently, each to its node if a node is given, otherwise to any broker.

        Returns, for each request, its response or the exception that it raised.
        """

        async def exchange() -> list[Any]:
            sent = [self._send(*request) for request in requests]
            responses = [await _outcome(response) for response in sent]
            # If a broker has throttled a connection, kafka-python rejects requests on this connection without sending
            # them.
            while (
                rejected := [n for n, one in enumerate(responses) if isinstance(one, _NOT_READY)]
            ) and self._throttled():
                await self._manager._net.sleep(_THROTTLE_POLL_S)  # noqa: SLF001 - see the module's docstring
                for number in rejected:
                    responses[number] = await _outcome(self._send(*requests[number]))
            return responses

        try:
            responses: list[Any] = self._manager.run(exchange)
        except kafka_errors.KafkaError as error:
            logger.warning("transaction requests could not be sent. Cause: %s", error)
            return [error] * len(requests)
        return responses

    def _throttled(self) -> bool:
        """Whether a broker has asked this client to wait (KIP-219). The broker chooses the end of the wait."""
        return any("throttle" in connection.paused for connection in self._manager._conns.values())  # noqa: SLF001 - see the module's docstring

    def _send(self, request: Any, *node: int) -> Any:
        try:
            return self._manager.send(request, *node)
        except kafka_errors.UnknownBrokerIdError as error:
            # The broker left the cluster, or it joined after kafka-python read the metadata. The caller retries.
            self._manager.cluster.request_update()
            return error
        except kafka_errors.KafkaError as error:  # for example, the node is not ready
            return error


class _TokenProvider(AbstractTokenProvider):  # type: ignore[misc] # kafka-python has no type hints
    """Adapts :class:`Tokens` to kafka-python."""

    def __init__(self, tokens: Tokens) -> None:
        super().__init__()
        self._tokens = tokens

    def token(self) -> str:
        """Supply a token for each new connection, and for each session that is about to expire (KIP-368)."""
        return self._granted()[0]

    def extensions(self) -> Mapping[str, str]:
        return self._granted()[3]

    def _granted(self) -> Granted:
        try:
            return self._tokens()
        except TwoPhaseCommitError as error:  # kafka-python treats this error as an unreachable broker, and retries
            raise kafka_errors.SaslAuthenticationFailedError(str(error)) from error


def _open_in_turn(config: Mapping[str, Any]) -> KafkaAdminClient:
    """Connect through the first server that responds.

    kafka-python picks servers at random, and may spend all its time on a silent server
    (``KafkaConnectionManager._do_bootstrap``). So each attempt gets only a share of the time, and begins with a
    different server than the previous attempt.
    """
    total_ms = config.get("bootstrap_timeout_ms", _BOOTSTRAP_TIMEOUT_MS)
    count = len(config["bootstrap_servers"])
    shares = [weight / sum(_ROUNDS) / count for weight in _ROUNDS for _ in range(count)] if count > 1 else [1.0]
    tries = [({**config, "bootstrap_timeout_ms": total_ms * share}, n % count) for n, share in enumerate(shares)]
    for settings, first in tries[:-1]:
        # The next server may respond, or may be a broker instead of a controller.
        with suppress(kafka_errors.KafkaTimeoutError, kafka_errors.IncompatibleBrokerVersion):
            return _open(settings, first)
    return _open(*tries[-1])


def _open(config: Mapping[str, Any], first: int) -> KafkaAdminClient:
    opened: list[KafkaNetClient] = []
    # A request first waits for its connection. By default kafka-python waits 10 s for a silent broker, then up to 30 s
    # (KIP-601).
    patience_ms = config.get("request_timeout_ms", math.inf)
    patience = {name: min(ms, patience_ms) for name, ms in _SETUP_TIMEOUTS_MS.items()}

    def open_client(**settings: Any) -> KafkaNetClient:
        client = KafkaNetClient(**settings, **patience)
        opened.append(client)
        _take_turns(client._manager.cluster, config["bootstrap_servers"], first)  # noqa: SLF001 - see the module's docstring
        return client

    try:
        return KafkaAdminClient(
            **config,
            max_in_flight_requests_per_connection=10_000,
            metadata_max_age_ms=_METADATA_MAX_AGE_MS,
            kafka_client=open_client,
        )
    except (kafka_errors.KafkaError, ValueError, OSError):
        for client in opened:  # the failed constructor has left a thread and sockets behind
            client.close()
            client._manager._net.stop()  # noqa: SLF001 - see the module's docstring
        raise


def _take_turns(cluster: Any, servers: Sequence[str], first: int) -> None:
    """Give kafka-python one server at a time. If that server refuses the connection, try the next server."""
    places = {get_ip_port_afi(server)[:2]: place for place, server in enumerate(servers)}
    ordered = sorted(cluster.bootstrap_brokers(), key=lambda broker: places[broker.host, broker.port])
    turns = cycle(ordered[first:] + ordered[:first])
    cluster.bootstrap_brokers = lambda: [next(turns)]


async def _outcome(sent: Any) -> Any:
    try:
        return sent if isinstance(sent, Exception) else await sent
    except (kafka_errors.KafkaError, OSError) as error:
        return error


def _unreachable(config: Mapping[str, Any], error: Exception) -> TwoPhaseCommitError:
    servers = ", ".join(config["bootstrap_servers"])
    if isinstance(error, kafka_errors.KafkaTimeoutError):
        return UnavailableError(
            f"no Kafka broker responds at {servers} ({error}). Check bootstrap_servers and the network. For a secured "
            "listener, also check kafka.security.protocol, kafka.sasl.* and kafka.ssl.*"
        )
    return ConfigurationError(
        f"cannot connect to Kafka at bootstrap_servers={servers!r}: {error}. Correct bootstrap_servers or the connection options"
    )
