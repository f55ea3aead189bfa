"""The limit of every wait of a test: against hangs, so long that no slow machine reaches it."""

HANG_SECONDS = 3600.0
