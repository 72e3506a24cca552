"""``twopc migrate rehearse`` migrates on real local brokers, from Kafka 0.10 to transactional sinks and back, and counts."""
