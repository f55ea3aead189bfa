"""The other systems of the paper's Table 1 and later ones, for comparisons."""
