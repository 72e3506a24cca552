"""``twopc demo``: kill a streaming query on a real Kafka repeatedly, then count independently what it wrote."""
