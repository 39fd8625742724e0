"""What simulated nodes share besides the network."""
