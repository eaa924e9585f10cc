"""Every error class of the package: one tree, so that a caller can catch as widely or as narrowly as it likes.

Each message says the rule, what came, and what to do next. This module knows nothing about models, files or runs.
"""


class CutawayError(Exception):
    """Base of every error that the package raises on purpose."""


class InputError(CutawayError, ValueError):
    """An image, video, prompt, message or argument that cannot be used as given."""


class LimitError(InputError):
    """An input that is well formed but too large: pixels, frames, tokens against the model's positions."""


class CheckpointError(CutawayError, ValueError):
    """A checkpoint folder or weight file that is missing, damaged, quantised or does not fit its config."""


class ConfigError(CheckpointError):
    """A config file that is unreadable, or asks for a computation that is not implemented."""


class TraceError(CutawayError):
    """Base of the errors that reads and edits of named values raise."""


class OutOfOrderError(TraceError):
    """A value was read after the forward had passed the point where it is computed."""


class Unavailable(TraceError, AttributeError):  # noqa: N818 - the name users catch
    """A value that this load, family or kernel lacks; the message gives the reason and what to read instead.

    Also an `AttributeError`, so that `hasattr` and `getattr` with a default work.
    """


class NotReachedError(TraceError):
    """The forward ended without computing the value (a text prompt has no image values, for example)."""


class NoRunError(TraceError, AttributeError):
    """A value was read or assigned while no run was open. Also an `AttributeError`, for `hasattr`."""


class UnknownValue(TraceError, AttributeError):  # noqa: N818 - the name users catch
    """A name or address that no module has; the message lists the nearest ones."""


class EditError(TraceError, ValueError):
    """An edit that cannot act: of another shape, dtype or device, of a read-only value, or made too late."""
