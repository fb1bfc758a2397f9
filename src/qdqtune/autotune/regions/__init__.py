"""Regions: what they are, and how a graph is divided into them."""
