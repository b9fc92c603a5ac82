"""Plans of a run, as a TOML file or as typed objects."""
