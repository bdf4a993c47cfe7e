"""The one exception that is meant for the person at the keyboard."""


class UserError(Exception):
    """A problem the user can fix: the message is one sentence that names the fix."""


class SetupError(UserError):
    """A UserError that every later sample would meet as well: a run stops at the first."""


def first_line(error: BaseException) -> str:
    """What an exception says, up to its first line break."""
    return (str(error).strip().splitlines() or [type(error).__name__])[0]
