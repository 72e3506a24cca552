"""``twopc verify``: compare a sink's decisions with its output and checkpoint. It only reads: it fences nobody, ends nothing."""
