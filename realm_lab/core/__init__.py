"""Files, seeds, plug-ins and processes: the layer that all other packages use."""
