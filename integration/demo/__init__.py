"""``twopc demo`` kills a streaming query on a real Kafka repeatedly, then counts its output independently."""
