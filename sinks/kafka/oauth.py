"""Supply SASL/OAUTHBEARER tokens to a process's librdkafka and kafka-python clients.

librdkafka calls a :class:`Tokens` object as its ``oauth_cb``. kafka-python receives the same object through an adapter
(``twopc.sinks.kafka.broker_connection``). The clients reuse a token for half of its lifetime, because each task has its
own producer, and an identity provider may limit requests.

No error, representation or log line in this module contains a token or a client secret.
"""

from __future__ import annotations

import logging
import threading
import time
import weakref
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from twopc.errors import ConfigurationError, RetriableError, TwoPhaseCommitError
from twopc.redaction import REMEDY, flaw

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

logger = logging.getLogger(__name__)

#: Token, expiry in seconds since the epoch, principal, extensions. confluent-kafka expects this result from an ``oauth_cb``.
Granted: TypeAlias = "tuple[str, float, str, dict[str, str]]"

_FORM: Final = "(token, expiry in seconds since the epoch), and may add the principal and a dict of extensions"
_KINDS: Final[tuple[Any, ...]] = (str, (int, float), str, dict)
_LONGEST_LIFE_S: Final = 10 * 365 * 86_400
#: How long a client with a valid token waits for a new one.
_PATIENCE_S: Final = 1.0
#: How long a client with a valid token waits before it repeats a failed request.
_AGAIN_S: Final = 5.0
#: After this time, a request without a response counts as failed.
_HANGS_S: Final = 60.0
#: The ``Tokens`` objects whose last request failed, by their Python id.
_failing: weakref.WeakValueDictionary[int, Tokens] = weakref.WeakValueDictionary()


class Tokens:
    """Supplies tokens to every client of a process, and reuses them. Threads may share this object.

    A pickled copy does not contain the token.

    Args:
        request: the function that requests a new token, given ``config``.
        name: this object's name in error messages.
        config: the ``sasl.oauthbearer.config`` option.
    """

    def __init__(self, request: Callable[[str | None], Any], name: str, config: str | None = None) -> None:
        self._request, self._name, self._config = request, name, config
        self._granted: Granted | None = None
        self._renew_at = 0.0
        self._renewing: threading.Thread | None = None
        self._hangs_at = 0.0
        self._lock = threading.Lock()
        self.failure = ""  #: why the last request failed, if it did

    def __call__(self, _config: str | None = None) -> Granted:
        """Return a valid token. If no new token is available, reuse the old token until it expires.

        Raises:
            RetriableError: the request failed.
            ConfigurationError: the request was rejected, or its result is not a token.
        """
        with self._lock:
            now = time.time()
            if self._granted is None or now >= self._granted[1]:
                return self._renewed(now)
            if now >= self._renew_at:
                self._renew_soon(now)
            return self._granted

    def _renew_soon(self, now: float) -> None:
        """Request a new token in another thread, because a request that hangs must not delay a client with a valid token."""
        if self._renewing is not None and self._renewing.is_alive() and now < self._hangs_at:
            return
        self._renew_at = now + _AGAIN_S  # if the request fails
        self._hangs_at = now + _HANGS_S
        self._renewing = threading.Thread(target=self._try_to_renew, args=(now,), name="twopc-token", daemon=True)
        with suppress(RuntimeError):  # a process at its limit of threads uses the old token until it expires
            self._renewing.start()
            self._renewing.join(_PATIENCE_S)

    def _try_to_renew(self, now: float) -> None:
        with suppress(TwoPhaseCommitError):
            self._renewed(now)

    def _renewed(self, now: float) -> Granted:
        before = self._granted
        try:
            granted = self._requested()
        except TwoPhaseCommitError as error:
            if self._granted is before:  # otherwise, a later request has already succeeded
                self.failure = str(error)
                _failing[id(self)] = self
            # librdkafka ignores its callback's errors. Log the text only, because a log handler that keeps the error would also
            # keep the client.
            logger.warning("%s", str(error))
            raise
        if self._granted is None or granted[1] >= self._granted[1]:
            self._granted = granted
            self._renew_at = now + (granted[1] - now) / 2
            _failing.pop(id(self), None)
        return granted

    def __reduce__(self) -> tuple[Any, ...]:
        return Tokens, (self._request, self._name, self._config)

    def __repr__(self) -> str:
        return f"<tokens of {self._name}>"

    # A task unpickles a copy of this object, and the copy's function may also be a copy. All copies share one producer
    # pool.
    def __eq__(self, other: object) -> bool:
        return isinstance(other, Tokens) and (self._name, self._config) == (other._name, other._config)

    def __hash__(self) -> int:
        return hash((self._name, self._config))

    def _requested(self) -> Granted:
        try:
            returned = self._request(self._config)
        except TwoPhaseCommitError:
            raise
        except Exception as error:
            raise RetriableError(
                f"no token for SASL/OAUTHBEARER is available, because {self._name} raised {type(error).__name__}: {error}. No "
                "data was written with this client. Fix the function or its dependencies, and restart the query"
            ) from error
        return self._checked(returned)

    def _checked(self, returned: Any) -> Granted:
        parts = returned if isinstance(returned, tuple) else (returned,)
        is_token = len(parts) in {2, 3, 4} and all(
            isinstance(part, kind) for part, kind in zip(parts, _KINDS, strict=False)
        )
        if not is_token:
            got = ", ".join(type(part).__name__ for part in parts)  # no values, because one of them is a secret
            raise ConfigurationError(
                f"{self._name} returned ({got}), which is not a token for SASL/OAUTHBEARER. The function must return {_FORM}"
            )
        without: tuple[Any, ...] = ("", {})
        token, expires_s, principal, extensions = (*parts, *without[len(parts) - 2 :])
        if problem := flaw(token):
            raise ConfigurationError(f"the token for SASL/OAUTHBEARER that {self._name} returned {problem}. {REMEDY}")
        left_s = expires_s - time.time()
        if left_s > _LONGEST_LIFE_S:
            raise ConfigurationError(
                f"{self._name} returned the expiry {expires_s:.0f}, which is not a plausible time in seconds. If this "
                "value is in milliseconds, divide it by 1000"
            )
        if left_s <= 0:
            raise RetriableError(
                f"{self._name} returned a token for SASL/OAUTHBEARER that expired {-left_s:.0f} s ago. The function "
                "must request a new token in each call. Also check this host's clock"
            )
        return token, float(expires_s), principal, extensions


def require_token(config: Mapping[str, Any]) -> None:
    """Request a librdkafka client's token before the client is created.

    If the request failed, the client itself would wait for 10 s, and would not report the reason.

    Raises the same errors as :meth:`Tokens.__call__`.
    """
    if "oauth_cb" in config:
        config["oauth_cb"]()


def failures() -> list[str]:
    """Say why this process could not get a new token. A client without a token reports only a timeout."""
    return [tokens.failure for tokens in _failing.values()]


def name_of(function: object) -> str:
    """Return a callable's name for error messages. Copies of the callable have the same name."""
    kind = function if hasattr(function, "__qualname__") else type(function)
    return f"kafka.oauth_cb {getattr(kind, '__module__', '')}.{getattr(kind, '__qualname__', '')}"
