"""Names that users choose and that become files and folders."""

from __future__ import annotations

import re

from realm_lab.errors import UserError

LONGEST_BYTES = 200  # a file system takes 255, and temporary neighbours need some


def is_name(name: str, also: str = "") -> bool:
    """True if a name stays in its folder: letters, digits, `.`, `_`, `-` and the characters of `also`, the first
    a letter, a digit or `_`; and not too long for a file."""
    return bool(re.fullmatch(rf"\w[\w.{re.escape(also)}-]*", name)) and len(name.encode()) <= LONGEST_BYTES


def check_name(name: str, what: str, also: str = "", remedy: str = "change it") -> None:
    """Refuse an invalid name; the UserError calls it `what`."""
    if not is_name(name, also):
        allowed = " ".join([".", "_", *also, "-"])
        raise UserError(
            f"{what} '{name}': use letters, digits and {allowed} only, a letter or digit first, at most "
            f"{LONGEST_BYTES} bytes (it names files); {remedy}"
        )
