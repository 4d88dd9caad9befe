"""What learners share by composition."""
