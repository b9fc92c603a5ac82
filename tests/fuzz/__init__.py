"""Campaigns of accidents and attacks: each module has `main(cases, seed)`, which returns how many cases failed.

`python -m tests.fuzz --cases 200 --seed 1` runs them all, `python -m tests.fuzz kills --cases 100` one of them.
"""
