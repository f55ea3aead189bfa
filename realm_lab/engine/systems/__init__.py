"""Whole systems: REALM, its baselines, and the interface that others implement."""
