"""Faults that are played for practice (--allow-inject)."""
