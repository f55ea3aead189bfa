"""Which runs a study wants: a rule a file."""
