"""Environments behind one vector interface, in next-step layout."""
