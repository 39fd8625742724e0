"""Who takes part, with which ranks? The machine that decides it for a job, and its parts."""
