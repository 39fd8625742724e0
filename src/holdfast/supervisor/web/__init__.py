"""The supervisor for browsers and programs, by HTTP: a process of its own, which only asks the supervisor."""
