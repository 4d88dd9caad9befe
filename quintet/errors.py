"""Errors that quintet raises for a person to read.

Every message says what was required, what was given and what to do.  ``assert`` and the built-in
exceptions are left for quintet's own invariants.
"""


class QuintetError(Exception):
    """Base of all errors with which quintet answers a wrong input or a failed part."""


class ConfigError(QuintetError):
    """One or more faults in a configuration, all of them listed in the message."""


class EnvironmentFault(QuintetError):
    """An environment broke its contract: raised, returned NaN, or changed a shape."""


class CheckpointError(QuintetError):
    """A checkpoint can't be written, or none of the stored ones can be read."""


class NonFiniteError(QuintetError):
    """A loss or gradient became NaN or infinite."""


class GroupFault(QuintetError):
    """At least one run of a group failed; the others were not stopped by it."""
