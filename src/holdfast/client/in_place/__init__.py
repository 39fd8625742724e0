"""How does a rank that has not failed go on in its own process when another has? `lives` says it to the script."""
