"""Answer each of Spark's calls, because py4j reports only an ``Exception`` to Spark."""

from __future__ import annotations

import contextlib
import threading
from typing import TYPE_CHECKING

from twopc.errors import DecisionInDoubtError, release

if TYPE_CHECKING:
    from collections.abc import Iterator


@contextlib.contextmanager
def answered(batch_id: int, *, then: str) -> Iterator[None]:
    """In a classic session, replace an exception that is not an ``Exception``.

    After such an exception, py4j's thread ends without an answer, and the query would wait forever (py4j/clientserver.py,
    ``ClientServerConnection.wait_for_commands``).

    Args:
        batch_id: the batch that Spark has passed.
        then: what a restart does, for the message.

    Raises:
        DecisionInDoubtError: the body raised such an exception, perhaps after the decision.
    """
    try:
        yield
    except Exception:
        raise
    except BaseException as error:
        if threading.current_thread() is threading.main_thread():
            raise  # under Spark Connect, the process ends
        release(error)
        raise DecisionInDoubtError(
            f"batch {batch_id}: code that ran for the batch raised {type(error).__name__}({error}), which is not an "
            f"Exception. Spark would wait for this call forever, so the query stops. {then}. The log contains the traceback. "
            "If the code is yours (a function, an interceptor, a sink), raise an Exception instead of calling sys.exit()"
        ) from error
