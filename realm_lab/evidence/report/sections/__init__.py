"""The sections of a report, a file each; all_sections.py has their order."""
