"""Who is visited in a round, and in which order: orchestration knows no algorithm."""
