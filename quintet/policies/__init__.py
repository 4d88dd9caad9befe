"""Trained policies: their folders, the episodes that they play, and their scores."""
