"""What a server does with a cohort's displacements: optimisers and robust rules."""
