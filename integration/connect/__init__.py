"""Run ``exactly_once`` under Spark Connect, in a process on the server's host, without access to the JVM.

All code that does not need the JVM is in ``twopc.integration.spark``. Classic sessions use this code, too.
``docs/connect.md`` lists the differences.
"""
