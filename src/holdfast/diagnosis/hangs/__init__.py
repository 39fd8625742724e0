"""Which rank did the others wait for? By the flight recorder, by stacks, and by what ranks complain of."""
