"""The states that ranks have stashed: copies in other nodes' memory, and on a disk."""
