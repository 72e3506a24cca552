"""Import the stores that the demo's queries can write to.

A store is imported only if the user chooses it, because each store needs an extra.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any, Final

from twopc.integration.services import ServiceError

if TYPE_CHECKING:
    from twopc.integration.demo.stores.store import Store

#: The module and the class of each store, by its name in the option ``--sinks``.
_STORES: Final = {
    "kafka": ("twopc.integration.demo.stores.kafka", "KafkaStore"),
    "iceberg": ("twopc.integration.demo.stores.iceberg", "IcebergStore"),
    "postgres": ("twopc.integration.demo.stores.postgres", "PostgresStore"),
}
NAMES: Final = tuple(_STORES)


def store_of(name: str) -> type[Store]:
    """Import a store.

    Raises:
        ServiceError: a package that the store needs is not installed.
    """
    module, of_class = _STORES[name]
    try:
        found: Any = getattr(importlib.import_module(module), of_class)
    except ModuleNotFoundError as error:
        raise ServiceError(
            f"--sinks {name} needs the package {error.name}. Run: pip install 'spark-twopc[demo,{name}]'"
        ) from error
    return found  # type: ignore[no-any-return]  # listed above
