"""Subgraph mode: the pieces that an engine fuses, what each costs, and the best assembly."""
