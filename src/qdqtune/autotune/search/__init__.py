"""The search among placements of one model."""
