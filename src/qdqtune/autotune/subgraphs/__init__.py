"""Subgraph mode: the subgraphs that an engine fuses, what each costs, and the best assembly."""
