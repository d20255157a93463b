"""The simulation of agents on a cluster, from workloads to schedules and reports. It needs no Slurm, Docker or
queue."""
