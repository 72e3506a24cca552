"""``twopc migrate rehearse``: the whole way on real local brokers, from Kafka 0.10 to transactional sinks and back, counted."""
