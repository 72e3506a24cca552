"""What the sinks cost beside their peers: ``make bench``. Each group of cases is a module; ``benchmarks.run`` is the flow."""
