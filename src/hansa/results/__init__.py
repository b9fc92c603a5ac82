"""What a run leaves behind: writing, reading, tracking and reporting it."""
