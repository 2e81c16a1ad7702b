"""Tiles of matrices: what loads, copies, multiplies and stores them in the way of tensor cores."""
