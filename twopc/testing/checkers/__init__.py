"""Checkers: pure functions over histories that return every broken promise as a :class:`Violation`.

For any output: :mod:`.rows`. For Kafka's, with what its logs hold: :mod:`.equality`, :mod:`.order`, :mod:`.aborted_reads`,
:mod:`.whole_transactions`, :mod:`.ledger`, :mod:`.open_transactions`, :mod:`.stall`; :mod:`.verdict` collects the history
(:mod:`.watcher`, :mod:`.log_dump`) and asks them all.
"""
