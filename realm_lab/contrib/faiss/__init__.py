"""FAISS as the search of the MIPS index in pre-training."""
