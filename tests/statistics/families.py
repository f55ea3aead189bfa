"""What the tests of this folder share."""

from realm_lab.metrics import Metric

METRIC = Metric("x", "x")
