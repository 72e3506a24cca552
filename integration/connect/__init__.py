"""``exactly_once`` under Spark Connect: the function runs in a process of the server's host, which has no access to the JVM.

Everything that does not need the JVM is in ``twopc.integration.spark``, and the same for both. What differs: ``docs/connect.md``.
"""
