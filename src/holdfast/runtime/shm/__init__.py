"""Memory that the agent shares with its workers."""
