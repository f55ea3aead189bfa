"""The browser of the page that `verdict --page` writes."""

from tests.evidence.report.opened_page import browser

__all__ = ["browser"]
