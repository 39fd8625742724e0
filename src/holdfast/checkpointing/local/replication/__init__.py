"""Which ranks keep copies of one another's local checkpoints, and how are they sent?"""
