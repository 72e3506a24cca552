"""Shared by the sinks for lakehouse tables: tasks write data files, and one commit of the driver adds all files of a batch."""
