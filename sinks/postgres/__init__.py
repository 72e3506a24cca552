"""Write rows to a PostgreSQL table, each once: tasks stage them, and the driver publishes a whole batch at one instant."""
