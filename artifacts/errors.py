"""The one exception that is meant to be read by a user."""


class InputError(Exception):
    """Something the user gave, or left on disk, cannot be used.

    The message names the file, row, field or step, what was expected, what was found and what to do.
    The command line prints it without a traceback and exits with status 2.
    """
