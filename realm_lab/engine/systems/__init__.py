"""Whole systems: REALM, its baselines, and the interface that any system implements."""
