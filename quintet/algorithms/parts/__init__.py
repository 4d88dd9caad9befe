"""Parts that learners share by composition."""
