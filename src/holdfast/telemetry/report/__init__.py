"""What a person, or a tool, reads of a job."""
