"""Simulation of agents on a cluster: workloads in, schedules and reports out. It needs no Slurm, Docker or queue."""
