"""Checkers are pure functions that take a history, and return every broken promise as a :class:`Violation`.

:mod:`.rows` checks any output. :mod:`.equality`, :mod:`.order`, :mod:`.aborted_reads`, :mod:`.whole_transactions`,
:mod:`.ledger`, :mod:`.open_transactions` and :mod:`.stall` check Kafka's output and its logs. :mod:`.verdict` collects
the history (with :mod:`.watcher` and :mod:`.log_dump`) and calls all of these checkers.
"""
