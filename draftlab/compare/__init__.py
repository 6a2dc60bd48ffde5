"""Runs against each other: paired differences, and whether they are more than chance."""
