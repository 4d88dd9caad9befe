"""Worker and server processes and their messages."""
