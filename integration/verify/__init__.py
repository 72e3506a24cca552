"""``twopc verify``: a ledger, its checkpoint and its output, compared from outside. Reads only: it fences and ends nothing."""
