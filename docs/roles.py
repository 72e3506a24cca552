"""For the API page: Sphinx's roles in docstrings (``:class:`X```) become plain code, which Markdown can show."""

from __future__ import annotations

import re
from typing import Any

from griffe import Extension, Object

_ROLE = re.compile(r":(?:class|meth|func|attr|data|mod|exc):`~?([^`]+)`")


class Roles(Extension):
    """Rewrites each docstring as it is read."""

    def on_object(self, *, obj: Object, **_: Any) -> None:
        """See :class:`griffe.Extension`."""
        if obj.docstring is not None:
            obj.docstring.value = _ROLE.sub(r"`\1`", obj.docstring.value)
