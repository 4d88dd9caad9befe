"""Speed of training on fixed work, and what the machine would allow: `quintet bench`."""
