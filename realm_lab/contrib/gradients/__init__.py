"""Estimates of the retriever's gradient, compared with the exact one."""
