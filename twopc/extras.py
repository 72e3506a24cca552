"""The error for a package that only an extra installs."""

from __future__ import annotations


def missing_extra(what: str, extra: str, error: ModuleNotFoundError) -> ModuleNotFoundError:
    """The error to raise when ``what`` cannot be imported because a package of ``extra`` is absent."""
    return ModuleNotFoundError(
        f"{what} needs the package {error.name!r}, which is not installed. Run: pip install 'twopc[{extra}]'",
        name=error.name,
    )
