"""`holdfast run`: from a command line to one call."""
