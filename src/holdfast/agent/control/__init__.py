"""What an agent is asked while it runs, and by whom."""
