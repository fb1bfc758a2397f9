"""Patterns: what regions have in common, places in them, and what is known of them."""
