"""Pure tensor maths: estimators, losses, distributions.  Imports torch and jaxtyping only."""
