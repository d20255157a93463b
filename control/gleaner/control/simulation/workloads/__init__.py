"""Where workloads come from: logs in two formats, cleaned by named rules, and made ones."""
