"""How long refreshing takes, how stale the index is therefore, and what it costs."""
