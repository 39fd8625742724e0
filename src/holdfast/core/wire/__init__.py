"""What travels between machines: messages, and how others write theirs."""
