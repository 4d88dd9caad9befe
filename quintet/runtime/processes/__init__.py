"""Worker and server processes and what they say to each other."""
