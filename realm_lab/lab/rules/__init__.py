"""Rules for the runs that a study wants, each in a file."""
