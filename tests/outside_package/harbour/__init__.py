"""Custom parts of realm_lab: the example package of docs/extending.md."""
