"""Plan the time of a refresh, the resulting staleness of the index, and the cost."""
