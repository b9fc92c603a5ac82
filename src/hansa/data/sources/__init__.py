"""Where data comes from: every source is a piece whose `load()` delivers one `Dataset`."""
