"""What writes local checkpoints, and finds them again."""
