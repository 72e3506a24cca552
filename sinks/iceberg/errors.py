"""What the errors of a catalog or of the table's storage mean for a batch that is not decided yet."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Final

from twopc.errors import ConfigurationError, FatalError, TwoPhaseCommitError, UnavailableError

if TYPE_CHECKING:
    from collections.abc import Iterator

#: By the name of the client's class, because each catalog has its own client.
_MEANINGS: Final[dict[str, tuple[type[TwoPhaseCommitError], str]]] = {
    "NoSuchTableError": (ConfigurationError, "Create the table, or correct its name"),
    "NoSuchNamespaceError": (ConfigurationError, "Create the namespace and the table, or correct the table's name"),
    "UnauthorizedError": (ConfigurationError, "Check the credentials in the catalog's configuration"),
    "OAuthError": (ConfigurationError, "Check the credentials in the catalog's configuration"),
    "ForbiddenError": (ConfigurationError, "Grant the sink's user the rights that docs/iceberg.md lists"),
    "PermissionError": (ConfigurationError, "Grant the sink's user the rights that docs/iceberg.md lists"),
    "SignError": (ConfigurationError, "Check the credentials in the catalog's configuration"),
    "ModuleNotFoundError": (ConfigurationError, "Install the package that this catalog needs"),
    "ValidationError": (ConfigurationError, "Use a pyiceberg that can read the table's metadata, or another table"),
    "BadRequestError": (FatalError, "The catalog rejected the request"),
}
#: A mistake in the code must not read like a catalog that is down.
_MISTAKES: Final = (TypeError, AttributeError, NameError, AssertionError)
_SHOWN: Final = 500


class StoreError(Exception):
    """The catalog or the storage refused, or did not answer.

    Attributes:
        kind: what it is before a decision.
        advice: what to do.
    """

    def __init__(self, message: str, kind: type[TwoPhaseCommitError] = UnavailableError, advice: str = "") -> None:
        super().__init__(message)
        self.kind = kind
        self.advice = advice


class OvertakenError(StoreError):
    """Another driver has moved the sink's tag since this step read it."""


@contextlib.contextmanager
def translated(doing: str) -> Iterator[None]:
    """Turn an error of pyiceberg, or of a client below it, into a :class:`StoreError`."""
    try:
        yield
    except (TwoPhaseCommitError, StoreError, *_MISTAKES):
        raise
    except Exception as error:
        names = [kind.__name__ for kind in type(error).__mro__]
        kind, advice = next((_MEANINGS[name] for name in names if name in _MEANINGS), (UnavailableError, ""))
        raise StoreError(f"{doing}: {text_of(error)}", kind, advice) from error


def explained(error: Exception, what: str) -> TwoPhaseCommitError:
    """Build the error for a failure before the decision; its message begins with ``what``."""
    kind = getattr(error, "kind", UnavailableError)
    advice = getattr(error, "advice", "")
    parts = [f"{what}: {error}".rstrip("."), advice, "No part of the batch is decided or visible"]
    explanation: TwoPhaseCommitError = kind(". ".join(part for part in parts if part))
    return explanation


def reason(error: Exception) -> str:
    """Say why a decided batch is not in the table."""
    advice = getattr(error, "advice", "")
    return ". ".join(part for part in (str(error).rstrip("."), advice) if part)


def text_of(error: Exception) -> str:
    """The first line of the message, because the others may quote a whole statement; the class if it has none."""
    text = next(iter(str(error).strip().splitlines()), "") or type(error).__name__
    return text if len(text) <= _SHOWN else text[:_SHOWN] + "…"
