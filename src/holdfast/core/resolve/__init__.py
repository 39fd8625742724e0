"""From what was typed, and what the host and its scheduler say, to one configuration."""
