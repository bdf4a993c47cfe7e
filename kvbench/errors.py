"""The one exception that is meant for the person at the keyboard."""


class UserError(Exception):
    """A problem the user can fix: the message is one sentence that names the fix."""
