"""The systems that the sinks are compared with, one file each. Each reports why, if it cannot be set up here."""
