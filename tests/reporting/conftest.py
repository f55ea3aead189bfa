"""The browser of tests/reporting/opened_page.py as a fixture."""

from tests.reporting.opened_page import browser

__all__ = ["browser"]
