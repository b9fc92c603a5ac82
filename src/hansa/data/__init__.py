"""From a user's data to clients: sources, partitions, the federation, and how the data lies."""
