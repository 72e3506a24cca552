"""The protocol of two-phase commit; knows neither Kafka nor Spark."""
