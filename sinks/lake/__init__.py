"""What the sinks for lakehouse tables share: tasks write data files, and one commit of the driver adds those of a whole batch."""
