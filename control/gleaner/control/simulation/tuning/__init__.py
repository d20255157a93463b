"""The choice of settings for agents, by trials of settings on several histories, and a recommendation."""
