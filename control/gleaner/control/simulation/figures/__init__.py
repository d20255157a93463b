"""What a replay means: figures, their tables, and the files they go to."""
