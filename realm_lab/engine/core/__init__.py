"""Seeds, processes and the machine."""
