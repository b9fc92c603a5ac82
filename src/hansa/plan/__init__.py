"""Plans: what a run shall do, as a TOML file or as typed objects."""
