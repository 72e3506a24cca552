"""Checkers: pure functions of histories that return every broken promise as a :class:`Violation`.

:mod:`.rows` serves any output. For Kafka's output and its logs there are :mod:`.equality`, :mod:`.order`,
:mod:`.aborted_reads`, :mod:`.whole_transactions`, :mod:`.ledger`, :mod:`.open_transactions` and :mod:`.stall`; :mod:`.verdict`
collects the history (:mod:`.watcher`, :mod:`.log_dump`) and calls them all.
"""
