"""WHAT HAPPENED? Events on disk, and the reports that people, tools and machines read."""
