"""The one layer that knows every other: a graph in, something that runs out."""
