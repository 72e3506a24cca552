"""Checkers are pure functions of histories. They return every broken promise as a :class:`Violation`.

:mod:`.rows` checks any output. :mod:`.equality`, :mod:`.order`, :mod:`.aborted_reads`, :mod:`.whole_transactions`,
:mod:`.ledger`, :mod:`.open_transactions` and :mod:`.stall` check Kafka's output and its logs. :mod:`.verdict` collects the
history (:mod:`.watcher`, :mod:`.log_dump`) and calls all of them.
"""
