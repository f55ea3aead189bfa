"""Helpers for the tests of this folder."""

from realm_lab.records.metrics import Metric

METRIC = Metric("x", "x")
