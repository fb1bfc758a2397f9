"""The search: regions, patterns, insertion points, schemes."""
