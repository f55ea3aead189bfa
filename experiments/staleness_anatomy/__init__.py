"""The study of index staleness: what its arms are, how runs become tables, and tables a report."""
