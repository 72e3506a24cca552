"""Kafka, Redis and HBase on this machine without Docker, started from package artifacts: for tests and the demo."""
