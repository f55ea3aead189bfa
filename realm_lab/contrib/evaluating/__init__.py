"""The command `evaluate`: the stage, and predictions, another corpus or a run file for other programs."""
