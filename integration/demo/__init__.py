"""``twopc demo`` kills a streaming query on a real Kafka repeatedly, then counts independently what it wrote."""
