"""Findings about why an environment or a run may not learn, each with its evidence in numbers."""
