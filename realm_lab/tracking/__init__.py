"""Records of a run: its folder (the truth), its metrics, and MLflow as a view of both. No torch here."""
