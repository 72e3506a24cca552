"""Remember why brokers have not responded, for error messages."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import kafka.errors as kafka_errors

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Sequence

#: kafka-python reports these errors without a connection. They would hide the error of the last connection.
_WITHOUT_CONNECTION: Final = (kafka_errors.NodeNotReadyError, kafka_errors.UnknownBrokerIdError)
#: kafka-python's texts for a connection that existed and then ended. All its other texts are about a connection that could not
#: be made, for example because the broker is down.
_ENDED: Final = frozenset({"socket disconnected", "Connection closed during send", "closed"})


class ConnectionErrors:
    """The error of each node's last request; None stands for any node. Threads may share this object.

    A response from a node clears that node's error. A response from another node about the same ids also clears the error,
    because the coordinator may have moved, and the first node might never be asked again. Any response clears the error for None.

    Args:
        login_hint: the text that follows an error that may come from a rejected login.
    """

    def __init__(self, login_hint: str = "") -> None:
        self._login_hint = login_hint
        self._errors: dict[int | None, tuple[str, frozenset[str]]] = {}

    def note(self, nodes: Iterable[int | None], outcomes: Sequence[Any], about: Iterable[Collection[str]]) -> None:
        """Note the outcomes of requests to these nodes.

        Args:
            nodes: the node that received each request.
            outcomes: the response to each request, or its error.
            about: the ids in each request; empty if only a response from the same node clears the error.
        """
        for node, outcome, ids in zip(nodes, outcomes, about, strict=True):
            if not isinstance(outcome, Exception):
                self._errors.pop(node, None)
                self._errors.pop(None, None)
            elif not isinstance(outcome, _WITHOUT_CONNECTION):
                hint = self._login_hint if _may_be_a_refused_login(outcome) else ""
                waiting = self._errors.get(node, ("", frozenset()))[1]
                self._errors[node] = (f"{outcome}{hint}", waiting.union(ids or [""]))

    def settle(self, ids: Collection[str]) -> None:
        """Forget the errors of requests that were only about these ids. A broker has since responded about these ids."""
        for node, (why, waiting) in list(self._errors.items()):
            if left := waiting.difference(ids):
                self._errors[node] = (why, left)
            else:
                self._errors.pop(node, None)

    def texts(self, nodes: Collection[int]) -> list[str]:
        """Say why these nodes have not responded."""
        found = list(self._errors.items())
        named = [f"the last connection to broker {node} failed: {why}" for node, (why, _) in found if node in nodes]
        others = [f"the last connection failed: {why}" for node, (why, _) in found if node is None]
        return sorted(named) + others


def _may_be_a_refused_login(error: Exception) -> bool:
    """Whether a broker has closed an existing connection. Brokers do so right after they have rejected a login.

    kafka-python then often discards the broker's response (``KafkaTCPTransport._read_from_sock``).
    """
    if not isinstance(error, kafka_errors.KafkaConnectionError) or not error.args:
        return False
    # This is a text, or the socket's own error, which kafka-python passes on only for an existing connection.
    why = error.args[0]
    return why in _ENDED if isinstance(why, str) else isinstance(why, (ConnectionResetError, BrokenPipeError))
