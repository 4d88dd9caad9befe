"""Errors that quintet raises for the user.

Every message says what is required, what was found and what to do.  ``assert`` and the built-in
exceptions are for quintet's own invariants.
"""


class QuintetError(Exception):
    """Base of all errors for a wrong input or a failed part.

    Attributes:
        detail: further text for log.txt, as the traceback of a user's code; may be "".
    """

    detail: str = ""


class ConfigError(QuintetError):
    """One or more faults in a configuration, all of them listed in the message."""


class UntrustedError(ConfigError):
    """A file names code to run without a valid signature, and the caller has not allowed it."""


class EnvironmentFault(QuintetError):
    """An environment broke its contract: raised, returned NaN, or changed a shape."""


class TimeIsOver(QuintetError):
    """The minutes of a run are over while it samples."""


class BudgetChanged(Exception):
    """The run begins again, as another number of env_steps, the argument, fits its minutes."""


class CheckpointError(QuintetError):
    """A checkpoint can't be written, or none of the stored ones can be read."""


class ExportError(QuintetError):
    """A policy can't be exported, or an export is damaged or does not answer as its policy."""


class FileFault(QuintetError):
    """A file can't be read or written, or has invalid contents."""


class WorkerFault(QuintetError):
    """A process of a run died, stopped responding, or failed in code that is no environment's."""


class LearnerFault(WorkerFault):
    """One of several learners died or stopped responding."""


class NonFiniteError(QuintetError):
    """A loss or gradient became NaN or infinite.

    update: the learner's optimizer step, counted from 1, that made it so; None: the last one.
    """

    update: int | None = None


class GroupFault(QuintetError):
    """At least one run of a group failed; the others continued."""
