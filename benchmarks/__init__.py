"""Compare the cost of the sinks with that of peers: ``make bench``. Each group is a module; ``benchmarks.run`` runs them."""
