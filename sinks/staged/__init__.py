"""Sinks for stores without lasting transactions: tasks stage slices, and the driver applies them after its decision."""
