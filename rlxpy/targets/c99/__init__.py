"""Portable C99: a graph as a library of readable loops, with its weights, its tests and a Makefile."""
