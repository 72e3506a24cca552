"""Start the ``twopc`` command. If a command needs an extra that is not installed, the error names that extra."""

from __future__ import annotations

import sys


def main() -> None:
    """Run the command line."""
    try:
        from twopc.integration.cli import app  # noqa: PLC0415 - typer may not be installed

        app()
    except ModuleNotFoundError as error:
        sys.exit(
            f"twopc: the {error.name!r} package is not installed. Run: pip install 'spark-twopc[verify]', or "
            "'spark-twopc[demo]' for `twopc demo` and `twopc migrate rehearse`"
        )


if __name__ == "__main__":
    main()
