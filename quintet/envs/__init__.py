"""Environments with one vector interface, in next-step layout."""
