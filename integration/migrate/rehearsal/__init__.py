"""``twopc migrate rehearse`` migrates from Kafka 0.10 to transactional sinks and back on real local brokers, and counts."""
