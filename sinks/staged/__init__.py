"""Shared code for stores without lasting transactions. Tasks stage slices, and the driver applies them after its decision."""
