"""How good models are: metrics as pieces, and the suite of a run."""
