"""Our replay held against the real Slurm, whose clocks run faster: `glean simulate validate`."""
