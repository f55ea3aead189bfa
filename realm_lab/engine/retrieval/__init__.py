"""The MIPS index, its freshness, and the candidates of a query (section 3.3)."""
