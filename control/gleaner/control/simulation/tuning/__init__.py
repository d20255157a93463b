"""Which agents to have: trials of settings on histories, kept as they are done, and what they recommend."""
