"""Engines that drive the protocol, and real services for demos and tests."""
