"""One host's daemon, which knows every rank that runs there."""
