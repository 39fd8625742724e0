"""Processes: how they start, end, and leave nothing behind."""
