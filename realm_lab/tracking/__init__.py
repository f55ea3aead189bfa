"""What a run leaves behind: its folder (the truth), its metrics, and MLflow as a view of both. No torch here."""
