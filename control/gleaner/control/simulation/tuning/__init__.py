"""The trial of settings for agents on several histories, and a recommendation."""
