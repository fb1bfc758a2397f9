"""Measurements of qdqtune itself: ratios from one interleaved run, never assertions."""
