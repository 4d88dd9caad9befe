"""Learners that share every batch."""
