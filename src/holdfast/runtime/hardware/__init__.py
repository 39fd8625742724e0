"""What this host has: CPUs, GPUs, memory, its kernel and its disks."""
