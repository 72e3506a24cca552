"""Shared code for lakehouse sinks. Tasks write data files, and the driver adds all files of a batch in one commit."""
