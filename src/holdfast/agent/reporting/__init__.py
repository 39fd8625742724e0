"""Who hears what happens here: the record, the supervisor, daemons and services."""
