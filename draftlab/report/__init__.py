"""Evaluation runs as one HTML page that needs nothing but itself."""
