"""The one exception a user is meant to see, and the name that was probably meant."""

import difflib
from collections.abc import Iterable

LONGEST_MESSAGE = 1000


class UserError(ValueError):
    """Bad input, told in one line that names the file, line or parameter and the remedy.

    The command line prints the message alone and exits with code 2. Of a message that quotes a long input the middle is
    left out.
    """

    def __init__(self, message: object = ""):
        text = str(message)
        half = LONGEST_MESSAGE // 2
        super().__init__(text if len(text) <= LONGEST_MESSAGE else f"{text[:half]} ... {text[-half:]}")


def nearest(name: str, known: Iterable[str]) -> str:
    """The name that `name` was probably meant to be; "" where none is known."""
    return next(iter(difflib.get_close_matches(name, list(known), n=1, cutoff=0.0)), "")
