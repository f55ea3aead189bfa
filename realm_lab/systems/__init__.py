"""Whole systems: what a user asks, and what REALM is compared with."""
