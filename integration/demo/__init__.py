"""``twopc demo`` repeatedly kills a streaming query with a real Kafka broker, and then independently counts its output."""
