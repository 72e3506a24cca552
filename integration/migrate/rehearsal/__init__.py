"""Rehearse a migration from Kafka 0.10 to transactional sinks and back, on local brokers (``twopc migrate rehearse``)."""
