"""Reports: tables, figures and pages made from run folders. Nothing here trains or imports torch."""
