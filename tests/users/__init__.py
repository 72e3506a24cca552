"""Users: random programs around ``foreachBatch``, each against a plain reference. ``python -m tests.users`` runs them.

``pieces_*.py`` list what people write, ``grammar.py`` draws a program from them, ``program.py`` is its text. ``runner.py``
executes the text over ``worlds.py``: with ``reference.py`` in the place of ``exactly_once``, and with the product, which is
interrupted at crash points and started again. ``recorder.py`` records what happens, and ``judge.py`` compares.
"""
