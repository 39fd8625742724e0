"""The checks. Each is a function of a `health.check.Look`, and runs in a process of its own that may hang or die."""
