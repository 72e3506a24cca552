"""The systems with which the benchmarks compare the sinks. If a system cannot be set up here, its module reports why."""
