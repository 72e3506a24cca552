"""Tools that break a sink on purpose and check the result. See docs/test-your-sink.md.

- :mod:`twopc.testing.contract`: the test suite that every sink in this toolkit passes
- :mod:`twopc.testing.kill_loop`: run any streaming query, kill it repeatedly, and compare its output with its input
- :mod:`twopc.testing.crash_points`: kill or stop a process, or make it fail, at a named step of the protocol
- :mod:`twopc.testing.checkers`: pure functions that detect broken promises in a history
- :mod:`twopc.testing.plugin`: the pytest plugin

Importing this package imports none of these modules, because each module needs different libraries.
"""
