"""A project in which each system goes the whole way, as a fixture."""

from tests.whole import whole

__all__ = ["whole"]
