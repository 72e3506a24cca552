"""Keep secrets out of messages.

Clients quote a value that they cannot send, such as a token that was read from a file and still ends in a line break. So a sink
first refuses such a value, and the error names only the value's setting. In a client's other errors, known secrets are masked.
"""

from __future__ import annotations

import json
import re
import traceback
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import quote, quote_plus, unquote

from twopc.uris import passwords_in

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

_HIDDEN: Final = "…"
#: A shorter secret is not masked, because a short text also occurs in other words.
_SHORTEST: Final = 3
_CONTROL: Final = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028\u2029]")
#: A JSON or PEM document, such as the key of a service account, may consist of several lines.
_DOCUMENT: Final = re.compile(r"\A\s*\{|-----BEGIN ")
#: The id of a key, such as ``aws_access_key_id``, is not a secret. It is a name, like a user name.
_SECRET: Final = re.compile(
    r"token|secret|password|credential|key(?![-_.]?id$)|sas\b|sas_|header\.|connection[-_.]string"
)
_SWITCHES: Final = frozenset({"true", "false"})
_LAST_IN_A_HEADER: Final = "\xff"
#: A header's name, from RFC 9110.
_HEADER: Final = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
#: What to do about a :func:`flaw`.
REMEDY: Final = "If you read the value from a file, remove the file's last line break (text.strip())"


def flaw(value: str, *, is_password: bool = False) -> str:
    """Say why a value cannot be part of a header, a URL or a login, without showing the value. Return "" if the value is valid.

    A password may contain any character except NUL, because a C library would treat NUL as the password's end.
    """
    if is_password:
        return "contains a NUL character" if "\0" in value else ""
    if _CONTROL.search(value):
        return "contains a line break or another control character"
    if value != value.strip():
        return "begins or ends with a blank"
    return ""


def flaw_of_header(value: str) -> str:
    """Like :func:`flaw`, for a header's value, which Python's clients encode as Latin-1."""
    problem = flaw(value)
    return problem or ("contains a character outside Latin-1" if any(map(_LAST_IN_A_HEADER.__lt__, value)) else "")


def flaws_in(options: Mapping[str, Any], *, are_passwords: bool = False) -> Iterator[str]:
    """Describe the flaw in each option's value, and say what to do about it. The text contains the option's name."""
    for name, value in options.items():
        if isinstance(value, Mapping):
            yield from flaws_in({f"{name}.{key}": inner for key, inner in value.items()}, are_passwords=True)
            continue
        is_text = isinstance(value, str) and not _DOCUMENT.search(value)
        if is_text and (problem := flaw(value, is_password=are_passwords)):
            yield f"the value of {name!r} {problem}. {REMEDY}"


def is_header_name(text: str) -> bool:
    """Return whether a text can be the name of an HTTP header."""
    return _HEADER.fullmatch(text) is not None


def secrets_in(options: Mapping[str, Any]) -> Iterator[str]:
    """Yield the options' secrets: the values of options whose names suggest a secret, and passwords in URIs."""
    for name, value in options.items():
        if isinstance(value, Mapping):
            yield from secrets_in({f"{name}.{key}": inner for key, inner in value.items()})
        elif isinstance(value, str):
            yield from passwords_in(value)
            if _SECRET.search(name.lower()) and value.lower() not in _SWITCHES:
                yield value


class Redaction:
    """Masks secrets in messages.

    Args:
        secrets: the secrets.
    """

    def __init__(self, secrets: Iterable[str] = ()) -> None:
        self._forms = set[str]()
        self.add(secrets)

    def add(self, secrets: Iterable[str]) -> None:
        """Also mask these secrets."""
        self._forms |= {form for secret in secrets for form in _forms(secret.strip()) if len(form) >= _SHORTEST}

    def __call__(self, text: str) -> str:
        """Return the text without the secrets, even if it contains them escaped."""
        for form in sorted(self._forms, key=len, reverse=True):
            text = text.replace(form, _HIDDEN)
        return text

    def cause(self, error: BaseException) -> BaseException | None:
        """Return the error, for use as another error's cause; None if the error or one of its own causes shows a secret."""
        text = "".join(traceback.format_exception(error))
        return error if self(text) == text else None


def _forms(secret: str) -> set[str]:
    """Return the forms in which a client may quote a secret: escaped, with other whitespace, or only one of its lines."""
    found = set[str]()
    for text in (secret, " ".join(secret.split()), *map(str.strip, secret.splitlines())):
        found |= {text, quote(text, safe=""), quote_plus(text), unquote(text)}
        found |= {repr(text)[1:-1], repr(text.encode())[2:-1], json.dumps(text)[1:-1]}
    return found
