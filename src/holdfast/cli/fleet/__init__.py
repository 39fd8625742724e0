"""The commands about the supervisor, its nodes, and the daemon."""
