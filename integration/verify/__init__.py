"""``twopc verify``: compare a sink's decisions with its output and checkpoint. Read-only: it fences nothing, ends nothing."""
