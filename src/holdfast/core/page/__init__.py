"""One worker's shared page: its layout, and what it tells."""
