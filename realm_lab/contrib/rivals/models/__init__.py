"""Models of the rival systems."""
