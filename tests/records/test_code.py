"""Digests of code: edits that move them, the reached modules, and the files that custom code opens."""

import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from realm_lab.records import code
from realm_lab.records.code import MISSING, CodeReader, differing, outside_digest, package_modules
from realm_lab.records.files import read_json
from realm_lab.records.opened import opened_by
from realm_lab.records.plugins import own_code
from tests.factories.errors import refused

SOURCE = '''"""Docstring."""
import math

LIMIT = 3  # a comment


class Circle:
    """Docstring."""

    radius: float = 1.0
    """Docstring of a field."""

    def area(self) -> float:
        "Docstring."
        return math.pi * self.radius ** 2
'''


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str, str], Path]:
    """Write a module into the working folder: `place(NAME, TEXT)`."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path, str(tmp_path)])

    def made(name: str, text: str) -> Path:
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
        return path

    return made


@pytest.mark.parametrize(
    ("old", "new", "is_same"),
    [
        ("  # a comment", "", True),
        ("Docstring.", "Other words.", True),
        ('"""Docstring of a field."""', "", True),
        ("\n\n\nclass", "\nclass", True),
        ("LIMIT = 3", "LIMIT = (3)", True),
        ("LIMIT = 3", "LIMIT = 3.0", False),
        ("self.radius", "self.diameter", False),
        ("import math", "import cmath as math", False),
        ("-> float", "-> int", False),
    ],
)
def test_a_digest_moves_with_the_code_alone(
    place: Callable[[str, str], Path], old: str, new: str, is_same: bool
) -> None:
    assert old in SOURCE
    place("one.py", SOURCE)
    place("two.py", SOURCE.replace(old, new))
    assert (outside_digest("one") == outside_digest("two")) == is_same


def test_modules_are_reached_by_imports_of_any_form(place: Callable[[str, str], Path]) -> None:
    place("start.py", "import json, numpy\nfrom parts.left import name\n\ndef later():\n    from parts import right\n")
    place("parts/__init__.py", "")
    place("parts/left.py", "from . import sibling\nname = 1\n")
    place("parts/right.py", "import typing\nif typing.TYPE_CHECKING:\n    import unused\nelse:\n    import used\n")
    place("used.py", "from typing import TYPE_CHECKING\nif not TYPE_CHECKING:\n    import used_too\n")
    for name in ("parts/sibling.py", "unused.py", "used_too.py"):
        place(name, "")
    found = CodeReader().reached(["start"])
    assert list(found) == ["parts", "parts.left", "parts.right", "parts.sibling", "start", "used", "used_too"]
    assert MISSING not in found.values()


def test_modules_of_its_own_package_are_in_the_digest_of_a_custom_part(place: Callable[[str, str], Path]) -> None:
    place("lab/__init__.py", "")
    place("lab/masks.py", "import helper\nfrom lab import parts\n")
    place("lab/parts.py", "SHARE = 1\n")
    place("lab/unused.py", "")
    place("helper.py", "")
    assert outside_digest("lab.masks") == {
        name: CodeReader().reached(["lab.masks"])[name] for name in ("lab", "lab.masks", "lab.parts")
    }


def test_a_helper_of_a_custom_part_counts_and_installed_packages_do_not(place: Callable[[str, str], Path]) -> None:
    place("mine.py", "import torch\nimport helper\nfrom realm_lab.engine.masking import MaskRequest\n")
    helper = place("helper.py", "SHARE = 1\n")
    before = CodeReader().reached(["mine"])
    assert {"mine", "helper", "realm_lab.engine.masking"} <= before.keys()
    assert not {"torch", "numpy"} & before.keys()
    assert outside_digest("mine") == before["mine"]  # another module is recorded, but belongs to no run's key
    helper.write_text("SHARE = 2\n")
    assert differing(before, CodeReader().reached(["mine"])) == ["helper"]
    helper.unlink()
    place("other.py", "")
    assert differing(before, CodeReader().reached(["mine"])) == ["helper"]


def test_the_cache_saves_work_and_may_be_broken(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cache = tmp_path / "runs" / ".code.json"
    first = CodeReader(cache)
    found = first.reached(["realm_lab.engine.models.realm"])
    assert not cache.exists(), "only what records something writes"
    first.save()
    assert len(read_json(cache)) == len(found)
    with monkeypatch.context() as patches:
        patches.setattr(code, "_examine", lambda *given: pytest.fail("examined again"))
        assert CodeReader(cache).reached(["realm_lab.engine.models.realm"]) == found
    cache.write_text('{"x": 3}')
    assert CodeReader(cache).reached(["realm_lab.engine.models.realm"]) == found


def test_code_that_is_no_python_is_named(place: Callable[[str, str], Path]) -> None:
    path = place("broken.py", "def f(:\n")
    with refused(path=path):
        CodeReader().reached(["broken"])
    assert CodeReader().reached(["nowhere"]) == {"nowhere": MISSING}


def test_every_python_has_the_same_digests(repository: Path) -> None:
    found = [path for minor in (12, 13, 14) if (path := shutil.which(f"python3.{minor}"))]
    others = [
        path for path in found if not subprocess.run([path, "-c", ""], capture_output=True, check=False).returncode
    ]
    if not others:
        pytest.skip("no other Python here")
    program = (
        "import sys; sys.path.insert(0, sys.argv[1])\n"
        "from realm_lab.records.code import *\n"
        "print(CodeReader().reached(package_modules()))"
    )
    expected = str(CodeReader().reached(package_modules()))
    for other in others:
        done = subprocess.run([other, "-c", program, str(repository)], capture_output=True, text=True, check=True)
        assert done.stdout.strip() == expected


READS = """
from pathlib import Path


def read(folder):
    (folder / "made.txt").write_text("made")
    (folder / "made.txt").read_text()
    return [(folder / name).read_text() for name in ("kept.txt", "edited.txt", "gone.txt")]
"""


def test_files_are_noted_for_the_module_that_opened_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "opening_module.py").write_text(READS)
    for name in ("kept.txt", "edited.txt", "gone.txt"):  # by another process: files that this one wrote do not count
        subprocess.run(["cp", __file__, tmp_path / name], check=True)
    assert own_code("test", "opening_module:read")(tmp_path) == [Path(__file__).read_text()] * 3
    subprocess.run(["cp", tmp_path / "opening_module.py", tmp_path / "edited.txt"], check=True)
    (tmp_path / "gone.txt").unlink()
    found = {path.name: same for path, same in opened_by(["opening_module"]).items() if path.suffix == ".txt"}
    assert found == {"kept.txt": True, "edited.txt": False}
    assert opened_by(["another_module"]) == {}
