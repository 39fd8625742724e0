"""What a round's agents tell one another: keys and values."""
