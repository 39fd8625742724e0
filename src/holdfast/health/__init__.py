"""Is this node fit? Checks, what they find, and who runs them without coming to harm."""
