"""The options, their values, and what a worker gets of them."""
