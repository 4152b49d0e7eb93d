"""Models as flows of stages: what they are made of, their weights, their profiles."""
