"""The command line: argv → a configuration → one call."""
