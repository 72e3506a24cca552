"""``twopc preflight`` tests whether a cluster meets the protocol's requirements, before a query relies on the cluster."""
