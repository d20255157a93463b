"""Sources of workloads: logs in two formats, cleaned by named rules, and synthetic workloads."""
