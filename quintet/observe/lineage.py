"""The decisions of a population as a picture: who was copied from whom, which value moved when."""

EVENTS = "population.jsonl"
"""The file of decisions in a run's folder, one JSON object a line."""
