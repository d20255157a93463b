"""The comparison of our replay with the real Slurm, whose clocks run faster. `lab/validate.py` is the command."""
