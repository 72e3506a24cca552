"""A network nemesis: a TCP proxy between Kafka clients and their brokers that understands Kafka's frames.

A schedule names a request in advance, and what the network does to it::

    with KafkaProxy(kafka.bootstrap_servers) as proxy:
        sink = KafkaSink(name="orders", bootstrap_servers=proxy.bootstrap_servers, …)
        lost = proxy.on(Api.END_TXN, transactional_id="orders.driver", nth=2).drop_response()
        …                                    # the driver's second EndTxn is executed, but not answered
        assert lost.injected == 1            # the fault did strike

        held = proxy.on(Api.END_TXN, transactional_id="orders.[0-9]*", committed=True).hold()
        …                                    # in a thread: the sender waits, gives up, asks again
        late = held.wait()                   # the request has come
        held.release()                       # it reaches the broker, long after
        assert late.answer() == "ProducerFencedError"

        for old in proxy.recorded(Api.END_TXN, "orders.[0-9]*"):
            proxy.replay(old)                # sends the same bytes again; returns the broker's response

``transactional_id`` is an ``fnmatch`` pattern, ``where`` a predicate over the :class:`Request`. ``nth`` counts from the moment
the rule is made; ``times`` limits how many requests the rule hits. The faults are the methods of :class:`Selection`. If two
rules apply to one request, the older one acts, and the other one still counts it. ``watch()`` only reports that a request
came and displaces no other rule. A hold that runs out lets the request go, and the proxy reports it when it closes.

As in TCP, a held request also holds back what its client sends after it on that connection, and it arrives even if the
client has closed its end. The proxy has one port per broker and rewrites brokers' addresses in answers, so that clients
stay behind it. It serves plain connections only, since TLS hides the frames. On closing, it releases every hold, closes
every connection, and raises its own errors: no schedule may pass because its proxy was broken.
"""

from __future__ import annotations

import socket
import socketserver
import threading
from collections import deque
from typing import TYPE_CHECKING, Final

from tests.nemesis.frames import Api, Request, Response, framed, limited, read_frames
from tests.nemesis.link import Link
from tests.nemesis.rules import Exchange, Fault, Rule, Selection

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from types import TracebackType

    from typing_extensions import Self

_HOST: Final = "127.0.0.1"
_KEPT_EXCHANGES: Final = 20_000
_REPLAY_TIMEOUT_S: Final = 10.0
_RECORDED: Final = frozenset(
    {Api.END_TXN, Api.INIT_PRODUCER_ID, Api.ADD_PARTITIONS_TO_TXN, Api.DESCRIBE_TRANSACTIONS, Api.LIST_TRANSACTIONS}
)


class KafkaProxy:
    """See the module.

    Args:
        bootstrap_servers: ``host:port`` of some brokers of the cluster; their responses name the others.
        newest: by kind of request, the newest version that clients find, as if the brokers had no newer one.
        bytes_per_s: how fast each connection carries requests; None: as fast as it can.
    """

    def __init__(
        self,
        bootstrap_servers: str,
        *,
        newest: Mapping[Api, int] | None = None,
        bytes_per_s: float | None = None,
    ) -> None:
        self._newest = newest
        self._bytes_per_s = bytes_per_s
        addresses = [server.rpartition(":") for server in bootstrap_servers.split(",")]
        self._known = [(host, int(port)) for host, _, port in addresses]
        self._lock = threading.Lock()
        self._fronts: dict[tuple[str, int], _Front] = {}
        self._rules: list[Rule] = []
        self._exchanges: deque[Exchange] = deque(maxlen=_KEPT_EXCHANGES)
        self._links: set[Link] = set()
        self._errors: list[BaseException] = []
        self._is_closed = False

    def __enter__(self) -> Self:
        """Start listening."""
        for broker in self._known:
            self._front(*broker)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Release every hold, close every connection, and raise the proxy's own error."""
        with self._lock:
            self._is_closed = True
            fronts, links, rules = list(self._fronts.values()), list(self._links), list(self._rules)
        for front in fronts:
            front.shutdown()
        for rule in rules:
            rule.release()
        for link in links:
            link.close()
        for front in fronts:
            front.server_close()  # joins the connections' threads
        if self._errors and error is None:
            raise self._errors[0]
        forgotten = [str(rule) for rule in rules if rule.is_forgotten]
        assert error is not None or not forgotten, f"not released in time: {forgotten}"

    @property
    def bootstrap_servers(self) -> str:
        """The address for clients to connect to."""
        return ",".join(f"{host}:{port}" for host, port in (self._front(*broker) for broker in self._known))

    @property
    def injected(self) -> int:
        """The number of faults injected so far."""
        return sum(rule.injected for rule in self._rules)

    def on(
        self,
        api: Api,
        *,
        transactional_id: str | None = None,
        committed: bool | None = None,
        where: Callable[[Request], bool] | None = None,
        nth: int = 1,
        times: float = 1,
    ) -> Selection:
        """Select future requests; a method of the result says what happens to them."""
        return Selection(api, transactional_id, committed, where, nth, times, self._arm)

    def recorded(
        self, api: Api, transactional_id: str | None = None, *, committed: bool | None = None
    ) -> list[Exchange]:
        """The requests of this kind so far, dropped ones included. Only the kinds in ``_RECORDED`` are recorded."""
        assert api in _RECORDED, f"{api!r} is not recorded; the proxy records only {_RECORDED}"
        wanted = Selection(api, transactional_id, committed, None, 1, 1, self._arm)
        return [exchange for exchange in list(self._exchanges) if wanted.matches(exchange.request)]

    def replay(self, exchange: Exchange) -> str:
        """Send a request's bytes again, on a new connection; returns the name of the broker's error.

        Raises:
            ConnectionError: the broker closed the connection without a response.
        """
        with socket.create_connection(exchange.broker, timeout=_REPLAY_TIMEOUT_S) as connection:
            connection.sendall(framed(exchange.request.payload))
            with connection.makefile("rb") as stream:
                for payload in read_frames(stream):
                    return Response(payload, exchange.request).error
        raise ConnectionError(f"no response to {exchange.request.body}")

    # -- for the connections -------------------------------------------------------------------------------------------

    def _arm(self, rule: Rule) -> Rule:
        with self._lock:
            self._rules.append(rule)
        return rule

    def _judge(self, exchange: Exchange) -> Rule | None:
        """The rule that acts on a request."""
        if exchange.request.api_key in _RECORDED:
            self._exchanges.append(exchange)
        with self._lock:
            rules = list(self._rules)
        due = [rule for rule in rules if rule.is_due(exchange.request)]  # each rule counts its own requests
        faults = [rule for rule in due if rule.fault is not Fault.NOTHING][:1]
        for rule in [*faults, *(rule for rule in due if rule.fault is Fault.NOTHING)]:
            rule.act(exchange)
        return faults[0] if faults else None

    def _front(self, host: str, port: int) -> tuple[str, int]:
        """The address at which clients reach a broker."""
        with self._lock:
            front = self._fronts.get((host, port))
            if front is None:
                if self._is_closed:
                    raise ConnectionAbortedError("the proxy has ended")
                front = self._fronts[host, port] = _Front((_HOST, 0), (host, port), self._serve)
                threading.Thread(target=front.serve_forever, args=(0.05,), name="nemesis-front", daemon=True).start()
            return _HOST, front.server_address[1]

    def _rewritten(self, response: Response) -> bytes:
        if self._newest is not None and response.request.api_key == Api.API_VERSIONS:
            return limited(response, self._newest)
        return response.readdressed(self._front)

    def _serve(self, client: socket.socket, broker: tuple[str, int]) -> None:
        try:
            connection = socket.create_connection(broker, timeout=_REPLAY_TIMEOUT_S)
        except OSError:
            return  # the proxy refuses the connection, like a broker that is down
        connection.settimeout(None)
        link = Link(client, connection, broker, self._judge, self._rewritten, self._bytes_per_s)
        with self._lock:
            if self._is_closed:
                connection.close()
                return
            self._links.add(link)
        try:
            link.run()
        except Exception as error:  # noqa: BLE001 - __exit__ raises it
            if not (self._is_closed and isinstance(error, OSError)):  # closing can cut a connection anywhere
                self._errors.append(error)
        finally:
            link.close()
            with self._lock:
                self._links.discard(link)


class _Front(socketserver.ThreadingTCPServer):
    """Listens in place of one broker."""

    allow_reuse_address = True
    request_queue_size = 128
    daemon_threads = False

    def __init__(
        self,
        address: tuple[str, int],
        broker: tuple[str, int],
        serve: Callable[[socket.socket, tuple[str, int]], None],
    ) -> None:
        self._broker = broker
        self._serve = serve
        super().__init__(address, socketserver.BaseRequestHandler)

    def finish_request(self, request: object, client_address: object) -> None:
        """Serve one connection, in its own thread."""
        del client_address
        assert isinstance(request, socket.socket)
        self._serve(request, self._broker)


__all__ = ["Api", "KafkaProxy"]
