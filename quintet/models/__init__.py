"""Networks: encoders, heads, normalisers, and how they are put together."""
