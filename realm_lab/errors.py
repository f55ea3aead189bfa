"""The one exception a user is meant to see."""


class UserError(ValueError):
    """Bad input, said in one line that names the file, line or parameter and the remedy.

    The command line prints the message alone and exits with code 2.
    """
