"""Files, seeds and processes: what every other room stands on."""
