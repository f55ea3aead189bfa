"""Hard negatives for training retrievers, as DPR's files have them."""
