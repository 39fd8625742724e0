"""The commands about jobs."""
