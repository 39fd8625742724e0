"""What developers run beside the tests: plain scripts, each of which answers the question in its first lines."""
