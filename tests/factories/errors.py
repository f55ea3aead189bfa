"""Errors for users, checked by their fields."""

from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from realm_lab.errors import UserError


@contextmanager
def refused(*words: str, **fields: object) -> Iterator[pytest.ExceptionInfo[UserError]]:
    """Expect an error of one line with these fields, and with these words outside the path."""
    with pytest.raises(UserError) as caught:
        yield caught
    error = caught.value
    message = str(error).replace(str(error.path), "", 1)
    assert {name: getattr(error, name) for name in fields} == fields, message
    assert [word for word in words if word not in message] == [], message
    assert "\n" not in message
