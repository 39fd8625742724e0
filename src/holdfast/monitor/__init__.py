"""Is it progressing? Who gives no sign of life, how long is long for this job, and who is slower than the others."""
