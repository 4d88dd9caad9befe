"""Networks: encoders, recurrent cores, heads, normalisers."""
