"""Typed parameters, presets, and the way from params.yaml to `Params`."""
