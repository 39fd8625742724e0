"""What outlives a job: the host daemon that knows every rank of its host, and the supervisor that knows every node."""
