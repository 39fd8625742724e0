"""Which nodes are fit, and what is done about the others? The machine, and its parts."""
