"""Frozen feature extractors, and the cache of what they computed."""
