"""Sources of data: every source is a piece whose `load()` delivers one `Dataset`."""
