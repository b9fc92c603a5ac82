"""The way of an upload to the server's sum."""
