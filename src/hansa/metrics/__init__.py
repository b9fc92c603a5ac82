"""Evaluation of models: metrics as pieces, and the suite of a run."""
