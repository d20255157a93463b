"""What agents would do to a cluster: workloads in, schedules and reports out. No Slurm, no Docker, no queue needed."""
