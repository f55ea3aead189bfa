"""Rules of the code: imports point down, and heavy libraries have one door each."""

import ast
import functools
import importlib.metadata
import re
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import NamedTuple

import pytest

from realm_lab.errors import ENGINE

REPOSITORY = Path(__file__).resolve().parents[1]
PACKAGE = REPOSITORY / "realm_lab"

# From the bottom: a package may import the packages before it. So `evidence` imports only `records` and `errors`, and
# plug-ins may import everything.
ENGINE_PACKAGES = "core params corpus worlds masking models retrieval evaluation training systems".split()
PACKAGES = [
    *("errors", "records", "evidence"),
    *(f"engine.{name}" for name in ENGINE_PACKAGES),
    *("lab.tracking", "lab", "api", "cli", "__main__", "contrib"),
]
DOORS = {
    "mlflow": {"realm_lab.lab.tracking.mlflow_store", "realm_lab.evidence.verdict.mlflow_runs"},
    "matplotlib": {"realm_lab.evidence.report.figures"},
    "optuna": {"realm_lab.lab.rules.trials"},
}
# Libraries that would make `realm-lab --help` slow.
NOT_AT_START = {"torch", "transformers", "mlflow", "pandas", "numpy", "matplotlib", "pydantic", "faiss", "dvc", "rich"}


class Import(NamedTuple):
    target: str  # a module of realm_lab in full, or the top name of a library
    line: int


def module_name(path: Path) -> str:
    parts = path.relative_to(REPOSITORY).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


MODULES = {module_name(path): path for path in sorted(PACKAGE.rglob("*.py"))}


def package_of(module: str) -> str:
    """The package of PACKAGES that holds the module; `realm_lab` and `realm_lab.engine` are in none."""
    _, *parts = module.split(".")
    return next((name for name in (".".join(parts[:2]), *parts[:1]) if name in PACKAGES), "")


def imports_of(source: str) -> list[Import]:
    """Every import of a module, in functions too."""
    found: list[Import] = []
    for node in ast.walk(ast.parse(source)):
        names: list[str] = []
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            full = [f"{node.module}.{alias.name}" for alias in node.names]
            names = [one if one in MODULES else node.module or "" for one in full]
        elif isinstance(node, ast.Call) and ast.unparse(node.func).endswith("import_module"):
            names = [str(part.value) for part in node.args[:1] if isinstance(part, ast.Constant)]
        for name in names:
            target = name if name.split(".")[0] == "realm_lab" else name.split(".")[0]
            found.append(Import(target, getattr(node, "lineno", 0)))
    return found


@functools.cache
def imports(module: str) -> tuple[Import, ...]:
    return tuple(imports_of(MODULES[module].read_text(encoding="utf-8")))


def modules_of(*packages: str) -> list[str]:
    return [module for module in MODULES if package_of(module) in packages]


def is_upward(module: str, target: str) -> bool:
    """True if an import goes up the list; `realm_lab` and `realm_lab.engine` import nothing of realm_lab at start."""
    if not package_of(module):
        return target in MODULES
    is_ours = target.startswith("realm_lab") and bool(package_of(target))
    return is_ours and PACKAGES.index(package_of(target)) > PACKAGES.index(package_of(module))


def test_imports_point_down() -> None:
    assert is_upward("realm_lab.evidence.claims", "realm_lab.engine.core.seeding")
    assert [
        f"{MODULES[module]}:{item.line}: {package_of(module)} must not import {item.target}"
        for module in MODULES
        for item in imports(module)
        if is_upward(module, item.target)
    ] == []


@pytest.mark.parametrize(("library", "doors"), DOORS.items())
def test_a_library_with_doors_is_imported_there_only(library: str, doors: set[str]) -> None:
    assert {module for module in MODULES for item in imports(module) if item.target == library} == doors


BLOCKING = """
import sys
class Blocking:
    def find_spec(self, name, path=None, target=None):
        if name == sys.argv[1]: raise ImportError(name)
sys.meta_path.insert(0, Blocking())
"""


def loaded_after_importing(modules: list[str], blocked: str = "") -> set[str]:
    """Return the top names in sys.modules of a fresh interpreter: libraries import each other, which no AST here
    shows. `blocked`: a library that cannot be imported there."""
    program = f"{BLOCKING}import {', '.join(modules)}; print(*sys.modules)"
    command = [sys.executable, "-c", program, blocked]
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=REPOSITORY)
    assert done.returncode == 0, done.stderr
    return {name.split(".")[0] for name in done.stdout.split()}


@pytest.mark.slow
def test_reports_tracking_and_the_corpus_start_without_torch() -> None:
    modules = [
        *modules_of("errors", "records", "engine.params", "engine.corpus", "engine.worlds", "lab.tracking"),
        "realm_lab.engine.systems.identity",
        "realm_lab.engine.systems.realm",
    ]
    assert not {"torch", "faiss"} & loaded_after_importing(modules)


def test_the_evidence_needs_no_torch_and_reads_no_file_at_import() -> None:
    """pandas takes a second to import, and MLflow more: the functions that read files import them."""
    modules = [module for module in modules_of("evidence") if module != "realm_lab.evidence.verdict.mlflow_runs"]
    assert modules
    assert not {"torch", "pandas", "mlflow"} & loaded_after_importing(modules, blocked="torch")


def test_statistics_need_numpy_and_scipy_alone() -> None:
    statistics = [module for module in MODULES if module.startswith("realm_lab.evidence.statistics.")]
    reached = {item.target.split(".")[0] for module in statistics for item in imports(module)}
    assert reached - set(sys.stdlib_module_names) == {"realm_lab", "numpy", "scipy"}
    assert not {"pandas", "torch", "pydantic", "matplotlib"} & loaded_after_importing(statistics)


def test_help_comes_at_once() -> None:
    project = tomllib.loads((REPOSITORY / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    commands = {target.partition(":")[0] for target in project["entry-points"]["realm_lab.verbs"].values()}
    assert not NOT_AT_START & loaded_after_importing(["realm_lab.cli", *sorted(commands)])


def declared(*extras: str) -> set[str]:
    """Distributions that pyproject.toml names, with those of some extras, in lower case with dashes."""
    project = tomllib.loads((REPOSITORY / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    wanted = project["dependencies"] + [one for extra in extras for one in project["optional-dependencies"][extra]]
    return {normal(re.match(r"[\w.-]+", line)[0]) for line in wanted}  # type: ignore[index]


def normal(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def test_what_is_imported_is_declared() -> None:
    owners = importlib.metadata.packages_distributions()
    standard = {*sys.stdlib_module_names, "compression"}  # of Python 3.14
    libraries = {item.target for module in MODULES for item in imports(module)} - standard
    named = declared("engine", "platform", "faiss", "serve", "hyperqueue")
    undeclared = {
        library
        for library in libraries
        if library.split(".")[0] != "realm_lab"
        and not {normal(name) for name in owners.get(library, [library])} & named
    }
    assert undeclared == set()


def test_evidence_and_studies_are_installed_without_the_engine() -> None:
    owners = importlib.metadata.packages_distributions()
    engine = declared("engine") - declared()
    assert {library for library in owners if {*map(normal, owners[library])} & engine} >= set(ENGINE)
    assert {normal(name) for library in ENGINE for name in owners[library]} >= engine
    used = {item.target for module in modules_of("records", "evidence") for item in imports(module)}
    assert not set(ENGINE) & used - {"torch"}  # the devices of a launched process


def test_what_is_declared_is_pinned() -> None:
    lines = (REPOSITORY / "constraints.txt").read_text(encoding="utf-8").splitlines()
    pins = [line for line in lines if line and not line.startswith("#")]
    # Exact, and from any index: no address, no file, no local version such as torch's +cpu.
    assert [pin for pin in pins if not re.fullmatch(r"[\w.-]+==[\w.!]+", pin)] == []
    assert declared("engine", "platform", "faiss", "serve", "dev") <= {normal(pin.split("==")[0]) for pin in pins}
    assert "torch==2.13.0" in pins


def test_a_module_has_a_name() -> None:
    nameless = {"utils", "util", "helpers", "helper", "misc", "common"}
    assert [module for module in MODULES if nameless & set(module.split("."))] == []
