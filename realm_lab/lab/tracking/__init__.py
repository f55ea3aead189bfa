"""MLflow as a view of run folders. No torch here."""
