"""The work of the training stages, a file for each."""
