"""Names, files and messages: how things are called, and how they become bytes."""
