"""The published experiments: each module has `run`, and its settings in the TOML file of the same name beside it."""
