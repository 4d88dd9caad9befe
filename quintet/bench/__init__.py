"""Speed of training on fixed work, and the limit of this machine: `quintet bench`."""
