"""Run configurations: their fields, layers, sources and presets."""
