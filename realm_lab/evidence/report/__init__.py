"""Run folders in, tables, figures and pages out. Nothing here trains or imports torch."""
