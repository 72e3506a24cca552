"""Drive the protocol from Spark, and run real services for demos and tests."""
