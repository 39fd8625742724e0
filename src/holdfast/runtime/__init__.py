"""The hands: everything that touches the operating system."""
