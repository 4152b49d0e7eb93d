"""Drawings of a graph before and after every pass: Graphviz text, and a page that needs nothing but a browser."""
