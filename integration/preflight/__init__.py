"""``twopc preflight`` tries on a cluster what the protocol needs, before a query relies on it."""
