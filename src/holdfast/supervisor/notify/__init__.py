"""Who is told what the supervisor does."""
