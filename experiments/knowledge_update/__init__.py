"""Table 4 of the paper on real revisions: news of the following year, and facts swapped in encyclopedia paragraphs."""
