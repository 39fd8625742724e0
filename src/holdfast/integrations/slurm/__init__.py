"""Slurm: its nodes and its jobs, by its own commands."""
