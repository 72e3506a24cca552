"""Shared code for stores whose transactions do not survive a crash.

Tasks stage slices, and the driver applies them after its decision.
"""
