"""Frozen feature extractors, and the cache that keeps what they computed."""
