"""``twopc verify``: compare a sink's decisions with its output and checkpoint.

The command only reads: it does not fence a driver or end a transaction.
"""
