"""``twopc preflight`` tests a cluster for what the protocol needs, before a query relies on it."""
