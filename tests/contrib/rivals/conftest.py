"""The tiny system, and a project in which each system goes the whole way, as fixtures."""

from tests.tiny_system import reference, system
from tests.whole import whole

__all__ = ["reference", "system", "whole"]
