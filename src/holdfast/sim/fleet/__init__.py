"""A simulated fleet: hosts, daemons, supervisors, and what goes wrong."""
