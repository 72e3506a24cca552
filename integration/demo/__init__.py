"""``twopc demo``: a streaming query on a real Kafka, killed again and again, and an independent count of what it wrote."""
