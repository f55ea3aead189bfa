"""Download the wheels that a machine with PyTorch and transformers, but without a network, still lacks.

    pip list --format=freeze > have.txt                        # there
    python -m benchmarks.wheels FOLDER --have have.txt         # here
    pip install --no-index --no-deps --target SITE FOLDER/*.whl; export PYTHONPATH=SITE:CHECKOUT     # there

Without --have, that machine is taken to have what images with PyTorch commonly have (COMMON).
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tomllib
import zipfile
from email.parser import HeaderParser
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from benchmarks.machine import table
from realm_lab.errors import UserError

REPOSITORY = Path(__file__).resolve().parents[1]
TESTS = ("pytest", "hypothesis")  # for the tests marked `gpu`
COMMON = (
    "torch transformers tokenizers safetensors huggingface-hub numpy scipy pandas pyarrow matplotlib pillow psutil "
    "rich regex jinja2 markdown-it-py markupsafe pytest hypothesis tqdm pyyaml packaging typing-extensions"
).split()
PLATFORMS = ["manylinux_2_28", "manylinux_2_27", "manylinux_2_17", "manylinux2014", "manylinux1"]
MOST_MEGABYTES = 50
MEGABYTE = 1e6


def main(argv: list[str] | None = None) -> int:
    """Download the wheels and print their sizes; returns 1 if they have more than MOST_MEGABYTES, 2 after an error."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, help="where the wheels go")
    parser.add_argument("--have", type=Path, help="what is there: the output of `pip list --format=freeze`")
    parser.add_argument("--python", default="3.12", help="version of Python there (default: 3.12)")
    parser.add_argument("--machine", default="x86_64", help="`uname -m` there (default: x86_64)")
    options = parser.parse_args(argv)
    try:
        have = read_versions(options.have) if options.have else dict.fromkeys(COMMON, "")
        wheels = download_lacking(options.folder, wanted_here(), have, options.python, options.machine)
    except UserError as error:
        print(f"benchmarks.wheels: {error}", file=sys.stderr)
        return 2
    sizes = [wheel.stat().st_size / MEGABYTE for wheel in wheels]
    print(table(["wheel", "MB"], [[wheel.name, size] for wheel, size in zip(wheels, sizes, strict=True)]))
    print(f"\n{len(wheels)} wheels, {sum(sizes):.1f} MB of at most {MOST_MEGABYTES}")
    return int(sum(sizes) > MOST_MEGABYTES)


def wanted_here() -> list[Requirement]:
    """Requirements in pyproject.toml: the dependencies, those of the extra `engine`, and TESTS."""
    project = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())["project"]
    development = [Requirement(text) for text in project["optional-dependencies"]["dev"]]
    wanted = [Requirement(text) for text in [*project["dependencies"], *project["optional-dependencies"]["engine"]]]
    return wanted + [one for one in development if one.name in TESTS]


def read_versions(path: Path) -> dict[str, str]:
    """Names and versions of `pip list --format=freeze`; a name without a version means any version."""
    if not path.exists():
        raise UserError(f"--have: {path}: no such file; write it there with `pip list --format=freeze`")
    pairs = [line.split("#")[0].partition("==") for line in path.read_text().splitlines()]
    return {canonicalize_name(name.strip()): version.strip() for name, _, version in pairs if name.strip()}


def download_lacking(
    folder: Path, wanted: list[Requirement], have: dict[str, str], python: str, machine: str
) -> list[Path]:
    """Download wheels that are wanted and not there, with their requirements; returns them sorted by name."""
    environment = {
        "python_version": python,
        "python_full_version": f"{python}.0",
        "platform_machine": machine,
        "extra": "",
    }
    waiting, wheels = list(wanted), dict[str, Path]()
    while waiting:
        one = waiting.pop(0)
        name = canonicalize_name(one.name)
        applies = one.marker is None or one.marker.evaluate(environment)
        is_there = name in have and (not have[name] or one.specifier.contains(have[name], prereleases=True))
        if applies and not is_there and name not in wheels:
            wheels[name] = _download(folder, f"{one.name}{one.specifier}", python, machine)
            waiting += [Requirement(text) for text in requirements_of(wheels[name])]
    return [wheels[name] for name in sorted(wheels)]


def requirements_of(wheel: Path) -> list[str]:
    """Requirements of a wheel."""
    with zipfile.ZipFile(wheel) as archive:
        metadata = next(name for name in archive.namelist() if name.endswith(".dist-info/METADATA"))
        return HeaderParser().parsestr(archive.read(metadata).decode()).get_all("Requires-Dist") or []


def _download(folder: Path, requirement: str, python: str, machine: str) -> Path:
    target = ["--python-version", python, "--implementation", "cp", "--only-binary", ":all:"]
    target += [word for platform in PLATFORMS for word in ("--platform", f"{platform}_{machine}")]
    tested = ["--no-deps", "--constraint", str(REPOSITORY / "constraints.txt")]
    command = [sys.executable, "-m", "pip", "download", "--quiet", *tested, *target, "--dest"]
    name = canonicalize_name(Requirement(requirement).name)
    done = subprocess.run([*command, str(folder), requirement], capture_output=True, text=True, check=False)
    found = [path for path in folder.glob("*.whl") if canonicalize_name(path.name.split("-")[0]) == name]
    if done.returncode or not found:
        raise UserError(f"{requirement}: pip downloads no wheel of it ({' '.join(done.stderr.split())[-200:]})")
    return max(found, key=lambda path: path.stat().st_mtime)


if __name__ == "__main__":
    sys.exit(main())
