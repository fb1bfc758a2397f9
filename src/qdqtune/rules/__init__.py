"""Placement rules: where Q/DQ goes when nobody measures. One rule per file, their order in one."""
