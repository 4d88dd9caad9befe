"""Sampling and learning on one machine; knows learners only through quintet.protocols."""
