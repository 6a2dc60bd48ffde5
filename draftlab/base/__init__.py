"""Words every stage shares: errors, quantities, records, progress.

Standard library, pydantic, rich.
"""
