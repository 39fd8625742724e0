"""Why did it fail? Reads what a failure has left, and names its cause. Nothing of it is loaded before something has failed."""
