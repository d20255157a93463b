"""Scripts that show the simulator to be right. They are no part of the package, and run from a checkout."""
