"""Kafka, Redis and HBase on this machine without Docker, for tests, benchmarks and demos. Not for production."""
