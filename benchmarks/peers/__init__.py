"""The systems with which the sinks are compared, one file each. If a system cannot be set up here, its file reports why."""
