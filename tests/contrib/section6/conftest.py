"""Registers the sources of section 6, as their entry point does if this checkout is installed."""

import realm_lab.contrib.section6.plugin  # noqa: F401
