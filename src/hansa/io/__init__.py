"""Names, files and messages: the names of things, and their bytes."""
