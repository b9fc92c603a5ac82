"""A newcomer, who does what the README and the tutorials say, letter by letter."""
