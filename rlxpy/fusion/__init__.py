"""Passes from graph to graph, and the plan they end in."""
