"""Events on disk: written, read, watched, pruned."""
