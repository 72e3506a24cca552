"""Provide a sink for each supported store. All sinks implement the contract in ``twopc.sink``."""
