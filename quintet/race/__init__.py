"""A race over learners and settings: bad entries fall out, and the best one trains to the end."""
