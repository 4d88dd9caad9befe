"""Memory of old data: rings of rows and what is drawn from them."""
