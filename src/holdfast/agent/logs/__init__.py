"""The workers' output: where it goes, and how it is shown and gathered."""
