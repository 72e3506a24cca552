"""What the sinks are compared with, one file each. Each says why, if it cannot be set up here."""
