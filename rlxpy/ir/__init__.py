"""The intermediate representation: what ops mean and what graphs are."""
