"""What is measured: open-domain answers, retrieval, and retrieval utility."""
