"""Request tokens for kafka-python as librdkafka's built-in methods do.

Source: librdkafka's CONFIGURATION.md (``sasl.oauthbearer.*``) and ``rdkafka_sasl_oauthbearer*.c``.
"""

from __future__ import annotations

import base64
import binascii
import functools
import http.client
import json
import logging
import re
import time
import urllib.error
import urllib.parse
import urllib.request
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from twopc.errors import ConfigurationError, RetriableError
from twopc.sinks.kafka.tls import tls_context
from twopc.uris import is_readable, is_sendable

if TYPE_CHECKING:
    from collections.abc import Mapping

    from twopc.sinks.kafka.oauth import Granted

logger = logging.getLogger(__name__)

_TIMEOUT_S: Final = 20  # the same timeout as in librdkafka
_ENDPOINT: Final = "sasl.oauthbearer.token.endpoint.url"
_REQUIRED: Final = (_ENDPOINT, "sasl.oauthbearer.client.id", "sasl.oauthbearer.client.secret")


@dataclass(frozen=True)
class ClientCredentials:
    """Requests tokens for ``sasl.oauthbearer.method=oidc``, with the OAuth client credentials grant (RFC 6749, section 4.4).

    Args:
        options: librdkafka options.

    Raises:
        ConfigurationError: an option is missing, or the endpoint is not a URL.
    """

    options: Mapping[str, str] = field(repr=False)

    def __post_init__(self) -> None:
        missing = [f"kafka.{name}" for name in _REQUIRED if not self.options.get(name)]
        if missing:
            raise ConfigurationError(
                f"kafka.sasl.oauthbearer.method='oidc' needs more options. Set {', '.join(missing)}"
            )
        if not is_sendable(self.options[_ENDPOINT]):
            raise ConfigurationError(
                f"option 'kafka.{_ENDPOINT}' must be a URL that begins with https:// and contains a host, but no blanks, no "
                "user and no password (the URL is not shown, because it may be private)"
            )
        if is_readable(self.options[_ENDPOINT]):
            _warn_once(self._endpoint)

    def __call__(self, _config: str | None) -> Granted:
        """Request a token.

        Raises:
            RetriableError: the endpoint does not respond.
            ConfigurationError: the endpoint rejects the client, or responds without a token.
        """
        began = time.time()
        answer = self._ask()
        token = answer.get("access_token")
        life_s = answer.get("expires_in")
        expires_s = _claims(token).get("exp") or (began + float(life_s) if life_s else None)
        if not isinstance(token, str) or not isinstance(expires_s, (int, float)):
            raise ConfigurationError(
                f"the response from {self._endpoint} contains no access_token or no expires_in. Check kafka.{_ENDPOINT}"
            )
        return token, float(expires_s), "", _pairs(self.options.get("sasl.oauthbearer.extensions", ""), ",")

    @property
    def _endpoint(self) -> str:
        return f"the token endpoint at {urllib.parse.urlsplit(self.options[_ENDPOINT]).hostname}"  # a URL may contain secrets

    def _ask(self) -> dict[str, Any]:
        form = {"grant_type": "client_credentials", "scope": self.options.get("sasl.oauthbearer.scope")}
        user = ":".join(urllib.parse.quote_plus(self.options[name]) for name in _REQUIRED[1:])
        request = urllib.request.Request(  # noqa: S310 - the scheme is checked above
            self.options[_ENDPOINT],
            urllib.parse.urlencode({name: value for name, value in form.items() if value}).encode(),
            {"Authorization": f"Basic {base64.b64encode(user.encode()).decode()}", "Accept": "application/json"},
        )
        context = tls_context(cafile=self.options.get("https.ca.location"))
        opener = urllib.request.build_opener(urllib.request.HTTPSHandler(context=context), _NoRedirect)
        try:
            with opener.open(request, timeout=_TIMEOUT_S) as response:
                answer = json.load(response)
        except urllib.error.HTTPError as error:
            error.close()
            if error.code >= 500 or error.code == 429:  # noqa: PLR2004 - HTTP status codes
                raise RetriableError(f"{self._endpoint} responded with HTTP {error.code}") from None
            raise ConfigurationError(
                f"{self._endpoint} responded with HTTP {error.code}, so no token for SASL/OAUTHBEARER is available. Check "
                f"{', '.join(f'kafka.{name}' for name in _REQUIRED)} and kafka.sasl.oauthbearer.scope"
            ) from None
        except OSError as error:
            raise RetriableError(f"{self._endpoint} cannot be used: {error}. Check kafka.{_ENDPOINT}") from error
        except (ValueError, http.client.HTTPException) as error:  # the message may quote the URL
            raise RetriableError(
                f"{self._endpoint} cannot be used: {type(error).__name__}. Check kafka.{_ENDPOINT}"
            ) from None
        return answer if isinstance(answer, dict) else {}


@functools.cache
def _warn_once(endpoint: str) -> None:
    """Log this warning once for each endpoint in a process. Otherwise, every new client would log it again."""
    logger.warning(
        "%s has a URL that begins with http://, so others on the network can read the client secret and the tokens. Set "
        "kafka.%s to an https:// URL",
        endpoint,
        _ENDPOINT,
    )


class _NoRedirect(urllib.request.HTTPRedirectHandler):
    def redirect_request(self, *_: Any, **__: Any) -> None:
        """Do not follow a redirect, because the redirect's target would receive the secret."""


def diagnose(config: Mapping[str, str]) -> None:
    """Request a token as a librdkafka client with ``method=oidc`` would, to find out why the client timed out.

    Raises the same errors as :class:`ClientCredentials`.
    """
    if config.get("sasl.oauthbearer.method") == "oidc":
        ClientCredentials(config)(None)


def unsecured(config: str | None) -> Granted:
    """Create a token without a signature, for tests (``enable.sasl.oauthbearer.unsecure.jwt``).

    ``config`` has the form of ``sasl.oauthbearer.config``: ``principal=admin scope=role1,role2 lifeSeconds=600``.

    Raises:
        ConfigurationError: ``config`` contains no principal.
    """
    given = _pairs(config or "", " ")
    principal = given.get("principal")
    if not principal:
        raise ConfigurationError("kafka.sasl.oauthbearer.config contains no principal. Set 'principal=<name>'")
    now = time.time()
    expires_s = now + int(given.get("lifeSeconds", "3600"))
    claims: dict[str, Any] = {given.get("principalClaimName", "sub"): principal, "iat": now, "exp": expires_s}
    if given.get("scope"):
        claims[given.get("scopeClaimName", "scope")] = given["scope"].split(",")
    token = f"{_encoded({'alg': 'none'})}.{_encoded(claims)}."
    prefix = "extension_"
    extensions = {name.removeprefix(prefix): value for name, value in given.items() if name.startswith(prefix)}
    return token, expires_s, principal, extensions


def _pairs(text: str, separator: str) -> dict[str, str]:
    pairs = (part.partition("=") for part in re.split(rf"[{separator}]+", text.strip()) if part)
    return {name.strip(): value.strip() for name, _, value in pairs}


def _encoded(value: Mapping[str, Any]) -> str:
    return base64.urlsafe_b64encode(json.dumps(value).encode()).decode().rstrip("=")


def _claims(token: object) -> dict[str, Any]:
    """Return a JWT's claims. The result is empty for any other kind of token."""
    parts = token.split(".") if isinstance(token, str) else []
    try:
        claims = json.loads(base64.urlsafe_b64decode(f"{parts[1]}=="))
    except (IndexError, binascii.Error, ValueError):
        return {}
    return claims if isinstance(claims, dict) else {}
