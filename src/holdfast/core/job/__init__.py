"""What happens to a job: failures, events, findings, decisions."""
