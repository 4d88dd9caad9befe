"""Sampling and learning on one machine; knows learners only by quintet.protocols."""
