"""Verdicts on runs of any program: read from its files, judged by the statistics of realm_lab's reports."""
