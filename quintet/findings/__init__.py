"""Findings: rows that say what may be wrong, by subject, and the engine that evaluates them."""
