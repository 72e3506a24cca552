from __future__ import annotations

from typing import Final

#: The exit status of ``python -m tests.model`` after a violation. An uncaught error of Python exits with 1.
VIOLATED: Final = 3
