"""The one exception that is meant for the person at the keyboard."""


class UserError(Exception):
    """A problem the user can fix: the message is one sentence that names the fix."""


class SetupError(UserError):
    """A UserError that every later sample would meet as well: a run stops at the first."""


class Unanswerable(UserError):
    """A sample's own fault, which no method and no further try can mend: recorded as permanent."""


class FileGone(UserError, FileNotFoundError):
    """A file of the data is not there: of one sample alone, or of all that follow. ``path``: which one."""

    def __init__(self, message: str, path: str | None) -> None:
        super().__init__(message)
        self.path = path


class MethodError(UserError):
    """One method's own fault: it would come again, and the other methods of a sample go on without it."""


def first_line(error: BaseException) -> str:
    """What an exception says, up to its first line break."""
    return (str(error).strip().splitlines() or [type(error).__name__])[0]


def without_frames(error: Exception) -> Exception:
    """The error with no hold on the frames it passed, whose tensors it would keep alive while it is kept."""
    each: BaseException | None = error
    while each is not None:
        each.__traceback__ = None
        each = each.__cause__ or each.__context__
    return error
