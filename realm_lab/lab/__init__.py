"""Studies on any engine: the study file, the runs it wants, launchers, status."""
