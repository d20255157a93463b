"""Our replay held against the real Slurm, whose clocks run faster. `lab/validate.py` is the command."""
