"""``twopc preflight`` tests whether a cluster has what the protocol needs, before a query relies on the cluster."""
