"""Kubernetes: its API, nodes, pods and JobSets."""
