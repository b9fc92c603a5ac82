"""A run's results: writing, reading, tracking and reporting them."""
