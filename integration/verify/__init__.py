"""``twopc verify``: compare a sink's decisions with its output and checkpoint.

The command only reads: it fences no driver and ends no transaction.
"""
