"""What an agent is asked while it runs: the control socket, health checks, operators' requests."""
