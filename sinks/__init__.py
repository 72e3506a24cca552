"""Sinks for each supported store, behind the contract of ``twopc.sink``."""
