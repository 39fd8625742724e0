"""etcd: elections, and the fleet's memory."""
