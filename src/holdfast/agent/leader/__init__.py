"""Nodes that may come to lead: who elects them, and how each is built."""
