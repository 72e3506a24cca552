"""``twopc demo`` repeatedly kills a streaming query on a real Kafka, then counts its output independently."""
