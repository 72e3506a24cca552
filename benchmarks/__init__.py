"""Compare the cost of the sinks with that of peers: ``make bench``. Each group is a module that ``benchmarks.run`` runs."""
