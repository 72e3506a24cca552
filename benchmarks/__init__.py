"""The cost of the sinks compared with their peers: ``make bench``. Each group is a module; ``benchmarks.run`` runs them."""
