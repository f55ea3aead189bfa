"""Studies on any engine: study files, the runs that a study wants, launchers, status."""
