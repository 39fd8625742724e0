"""Warm spare workers: the machine that decides, and the pool that holds them."""
