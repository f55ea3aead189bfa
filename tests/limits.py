"""How long a test waits: a limit is there for a hang, and never for a slow machine."""

HANG_SECONDS = 3600.0
