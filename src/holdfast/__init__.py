"""Holdfast launches distributed training and keeps it running."""

__version__ = "0.1.0"
