"""Training tasks of the rival systems."""
