"""One node's workers: how they start, what is known of them while they run, what they leave."""
