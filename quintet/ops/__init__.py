"""Pure tensor maths: estimators, losses, distributions.  Imports only torch and jaxtyping."""
