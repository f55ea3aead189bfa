"""REALM: everything that can change a number of a run."""
