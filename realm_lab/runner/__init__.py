"""Studies as data: cells, plans, tasks, launchers; searches."""
