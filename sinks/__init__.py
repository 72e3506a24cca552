"""Systems behind the contract of ``twopc.sink``."""
