"""Verdicts on runs that any program made: read from its files, judged by the statistics of realm_lab's reports."""
