"""Errors that quintet raises for a person to read.

Every message says what was required, what was given and what to do.  ``assert`` and the built-in
exceptions are left for quintet's own invariants.
"""


class QuintetError(Exception):
    """Base of all errors with which quintet answers a wrong input or a failed part.

    Attributes:
        detail: text for log.txt beside the message, as the traceback of a user's code; may be "".
    """

    detail: str = ""


class ConfigError(QuintetError):
    """One or more faults in a configuration, all of them listed in the message."""


class UntrustedError(ConfigError):
    """A file names code to run, and neither a signature nor the caller vouches for it."""


class EnvironmentFault(QuintetError):
    """An environment broke its contract: raised, returned NaN, or changed a shape."""


class CheckpointError(QuintetError):
    """A checkpoint can't be written, or none of the stored ones can be read."""


class FileFault(QuintetError):
    """A file can't be read or written, or holds something else than it should."""


class WorkerFault(QuintetError):
    """A process of a run died, fell silent, or failed in code that is not an environment's."""


class LearnerFault(WorkerFault):
    """One of several learners died or fell silent."""


class NonFiniteError(QuintetError):
    """A loss or gradient became NaN or infinite."""


class GroupFault(QuintetError):
    """At least one run of a group failed; the others were not stopped by it."""
