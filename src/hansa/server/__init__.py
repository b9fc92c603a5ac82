"""The server's use of a cohort's displacements: optimisers and robust rules."""
