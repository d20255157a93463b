"""The sources of workloads, which are logs in two formats, cleaned by named rules, and synthetic workloads."""
