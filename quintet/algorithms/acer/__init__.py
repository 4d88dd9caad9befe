"""ACER: actor-critic with experience replay."""
