"""What the errors of deltalake or of the table's storage mean for a batch that is not decided yet."""

from __future__ import annotations

import contextlib
import re
from typing import TYPE_CHECKING, Final

from twopc.errors import ConfigurationError, TwoPhaseCommitError, UnavailableError

if TYPE_CHECKING:
    from collections.abc import Iterator

#: By the name of the error's class.
_MEANINGS: Final[dict[str, tuple[type[TwoPhaseCommitError], str]]] = {
    "TableNotFoundError": (ConfigurationError, "Create the table, or correct table_uri"),
    "DeltaProtocolError": (ConfigurationError, "Use a table without this feature"),
    "PermissionError": (ConfigurationError, "Grant the sink's user the rights that docs/delta.md lists"),
}
#: The storage's clients do not say by class why they were refused.
_WORDS: Final[dict[str, tuple[type[TwoPhaseCommitError], str]]] = {
    "accessdenied|access denied|forbidden|unauthorized|permission denied|invalidaccesskeyid|signaturedoesnotmatch": (
        ConfigurationError,
        "Check storage_options, and grant the sink's user the rights that docs/delta.md lists",
    ),
    "unsupported table features|is not supported|catalog-managed": (
        ConfigurationError,
        "Use a table without this feature",
    ),
    "kernel error: schema error": (ConfigurationError, "Repair the table's columns, or use another table"),
    "found gap|expected contiguous": (
        ConfigurationError,
        "The table's log is damaged: somebody has deleted a part of it. Restore it",
    ),
}
#: A mistake in the code must not read like a storage that is down.
_MISTAKES: Final = (TypeError, AttributeError, NameError, AssertionError)
_SHOWN: Final = 500
_NOISE: Final = re.compile(r"\x1b\[[0-9;]*m|\s+0: <unknown>.*", re.DOTALL)


class StoreError(Exception):
    """The storage refused, or did not answer, or it has not got what the sink left there.

    Attributes:
        kind: what it is before a decision.
        advice: what to do.
    """

    def __init__(self, message: str, kind: type[TwoPhaseCommitError] = UnavailableError, advice: str = "") -> None:
        super().__init__(message)
        self.kind = kind
        self.advice = advice


class OvertakenError(StoreError):
    """Another driver has moved the sink's pointer since this step read it."""


@contextlib.contextmanager
def translated(doing: str) -> Iterator[None]:
    """Turn an error of deltalake, or of the storage below it, into a :class:`StoreError`."""
    try:
        yield
    except (TwoPhaseCommitError, StoreError, *_MISTAKES):
        raise
    except Exception as error:
        text = text_of(error)
        names = [kind.__name__ for kind in type(error).__mro__]
        by_class = (_MEANINGS[name] for name in names if name in _MEANINGS)
        by_words = (meaning for words, meaning in _WORDS.items() if re.search(words, text.lower()))
        kind, advice = next(by_class, None) or next(by_words, (UnavailableError, ""))
        raise StoreError(f"{doing}: {text}", kind, advice) from error


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
    """The beginning of the message in one line, without colours and stack frames; the class if it has none."""
    text = " ".join(_NOISE.sub("", str(error)).split()) or type(error).__name__
    return text if len(text) <= _SHOWN else text[:_SHOWN] + "…"
