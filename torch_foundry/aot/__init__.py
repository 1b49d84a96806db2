"""Kernels that are compiled when the package is built."""
