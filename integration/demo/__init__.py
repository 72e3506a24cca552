"""``twopc demo`` runs a query on a real Kafka broker, kills the query repeatedly, and independently counts its output."""
