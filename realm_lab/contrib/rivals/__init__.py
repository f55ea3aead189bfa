"""The other systems of the paper's Table 1 and what came after it, for comparisons."""
