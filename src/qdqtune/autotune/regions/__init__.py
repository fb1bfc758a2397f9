"""Regions: pieces of a graph, what each is, and how they are found."""
