"""Import the sinks from the user's code, because only this code has their credentials."""

from __future__ import annotations

import pkgutil
import sys
import traceback
from collections.abc import Iterable
from typing import Any

from twopc.errors import ConfigurationError
from twopc.sink import TwoPhaseCommitSink


def load_sinks(place: str) -> tuple[TwoPhaseCommitSink[Any], ...]:
    """Import ``module:name``: a sink, several sinks, or a function that returns sinks.

    The search includes the current directory.

    Raises:
        ConfigurationError: the import fails. The message does not quote an error from the user's code, because the error may
            contain a password.
    """
    if "" not in sys.path:
        sys.path.insert(0, "")  # as `python -m` does; for the script `twopc`, Python adds only the script's directory
    module, separator, name = place.partition(":")
    if not (module and separator and name):
        raise ConfigurationError(f"--sinks {place} is not in the form module:name")
    try:
        found = pkgutil.resolve_name(place)
        given = found() if callable(found) else found
        sinks = tuple(given) if isinstance(given, Iterable) else (given,)  # a generator also runs the user's code
    except ConfigurationError as error:
        raise ConfigurationError(f"--sinks {place}: {error}") from error
    except (ModuleNotFoundError, AttributeError) as error:
        raise ConfigurationError(
            f"--sinks {place} cannot be imported: {error}. Pass a module, and a name that the module defines"
        ) from error
    except Exception as error:
        raise ConfigurationError(
            f"--sinks {place}: {unquoted(error)}. Import the module in Python to see the error"
        ) from error
    if not sinks or not all(isinstance(one, TwoPhaseCommitSink) for one in sinks):
        raise ConfigurationError(f"--sinks {place} must be a sink, a list of sinks, or a function that returns them")
    return sinks


def unquoted(error: Exception) -> str:
    """Say where the user's code raised an error, without quoting the error's text."""
    where = traceback.extract_tb(error.__traceback__)[-1]
    place = f"{type(error).__name__} in {where.filename}, line {where.lineno}"
    return f"{place}. The error text is not shown, because it may contain a password"
