"""How long refreshing takes, how stale the index is therefore, what fits into memory and what it costs."""
