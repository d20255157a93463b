"""Scripts that check the simulator's results. They are not part of the package, and run from a checkout."""
