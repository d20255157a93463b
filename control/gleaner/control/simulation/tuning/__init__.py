"""The choice of settings for agents: trials of settings on histories, kept as they are done, and a recommendation."""
