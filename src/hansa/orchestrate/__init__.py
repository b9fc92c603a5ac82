"""The clients visited in a round, and their order: orchestration knows no algorithm."""
