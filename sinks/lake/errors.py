"""Explain the errors that a table format's library or the table's storage raises before a batch is decided."""

from __future__ import annotations

import contextlib
import re
from typing import TYPE_CHECKING, Final

from twopc.errors import TwoPhaseCommitError, UnavailableError
from twopc.redaction import Redaction

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

Meaning = tuple[type[TwoPhaseCommitError], str]
"""The class of the error to raise before a decision, and the advice at the end of the error message."""

#: The advice if pyarrow rejects the rows.
UNWRITABLE: Final = (
    "pyarrow cannot write these rows, so a new attempt would fail, too. Compare the DataFrame with the table's columns"
)
#: A bug in the code must not look like a storage failure.
_MISTAKES: Final = (TypeError, AttributeError, NameError, AssertionError)
_SHOWN: Final = 500


class StoreError(Exception):
    """The catalog or the storage rejected a request, did not respond, or has lost one of the sink's files or records.

    Attributes:
        kind: the class of the error to raise before a decision.
        advice: what the user must do.
    """

    def __init__(self, message: str, kind: type[TwoPhaseCommitError] = UnavailableError, advice: str = "") -> None:
        super().__init__(message)
        self.kind = kind
        self.advice = advice


class OvertakenError(StoreError):
    """Another driver has committed since this step read the sink's record."""


class Translation:
    """Turns errors from a library, and from the clients below it, into :class:`StoreError`.

    Args:
        text_of: returns an error's message in one line.
        by_class: maps the name of an error class to the error's meaning. Each client has its own error classes.
        by_words: maps a pattern, which is searched for in the lower-case error message, to the error's meaning. Some
            clients' classes do not say why the storage rejected a request.

    Attributes:
        redacted: masks the secrets of all tables that this process has opened, because an error does not name its table.
    """

    def __init__(
        self,
        text_of: Callable[[Exception], str],
        by_class: Mapping[str, Meaning],
        by_words: Mapping[str, Meaning] | None = None,
    ) -> None:
        self._text_of = text_of
        self._by_class = by_class
        self._by_words = by_words or {}
        self.redacted = Redaction()

    @contextlib.contextmanager
    def __call__(self, doing: str) -> Iterator[None]:
        """Translate an error from the ``with`` block. The new message begins with ``doing``."""
        try:
            yield
        except (TwoPhaseCommitError, StoreError, *_MISTAKES):
            raise
        except Exception as error:  # noqa: BLE001 - it is raised again
            words = self._text_of(error) or type(error).__name__
            kind, advice = self._meaning(error, words)  # before the words are masked: a password may be one of them
            text = shortened(self.redacted(words))
            raise StoreError(f"{doing}: {text}", kind, advice) from self.redacted.cause(error)

    def _meaning(self, error: Exception, text: str) -> Meaning:
        names = (kind.__name__ for kind in type(error).__mro__)
        by_class = (self._by_class[name] for name in names if name in self._by_class)
        by_words = (meaning for words, meaning in self._by_words.items() if re.search(words, text.lower()))
        return next(by_class, None) or next(by_words, (UnavailableError, ""))


@contextlib.contextmanager
def explaining(what: str) -> Iterator[None]:
    """Explain a failure before the decision. The message begins with ``what``."""
    try:
        yield
    except StoreError as error:
        raise explained(error, what) from error


def explained(error: Exception, what: str) -> TwoPhaseCommitError:
    """Build the error for a failure before the decision. The message begins with ``what``."""
    kind = getattr(error, "kind", UnavailableError)
    advice = getattr(error, "advice", "")
    parts = [f"{what}: {error}".rstrip("."), advice, "No part of this attempt is decided or visible"]
    explanation: TwoPhaseCommitError = kind(". ".join(part for part in parts if part))
    return explanation


def reason(error: Exception) -> str:
    """Say why a decided batch is not in the table."""
    advice = getattr(error, "advice", "")
    return ". ".join(part for part in (str(error).rstrip("."), advice) if part)


def shortened(text: str) -> str:
    """Shorten a long message."""
    return text if len(text) <= _SHOWN else text[:_SHOWN] + "…"
