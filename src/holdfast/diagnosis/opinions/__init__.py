"""Who else is asked where the rules are not sure: the words of the log, and a language model."""
