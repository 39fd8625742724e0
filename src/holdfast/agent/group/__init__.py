"""What does this node do now? The machine that runs its workers through the rounds of a job, and its parts."""
