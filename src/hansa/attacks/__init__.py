"""Attacks on a federation, to evaluate how much they harm: off unless a plan asks, and on simulated clients only."""
