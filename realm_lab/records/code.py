"""Compute digests of Python modules and of all modules that they import.

A module's digest covers its syntax tree without comments, docstrings and layout. It is the same on every Python
version and changes only with the code. Modules are found by import statements, including those inside
functions; imports for type checkers do not count. Nothing is imported.
"""

from __future__ import annotations

import ast
import functools
import hashlib
import importlib.util
import json
import os
import re
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path

from realm_lab.errors import UserError
from realm_lab.records.files import read_json, write_text

OURS = __name__.partition(".")[0]
PACKAGE = Path(__file__).resolve().parents[1]
FORMAT = 2  # raise it when digests or imports are computed in another way
DIGITS = 16
MISSING = "missing"  # the digest of a module that cannot be found
INSTALLED = {"site-packages", "dist-packages"}
_MAY_IMPORT = (ast.stmt, ast.excepthandler, ast.match_case)  # parts of a syntax tree that contain import statements

Examined = tuple[str, tuple[tuple[str, str], ...]]  # digest; (module, name) of each import, as in `_imports`


class CodeReader:
    """Digests of modules, taken when each module is first asked for.

    `cache`: a JSON file of digests, stored by the content of the source files, so that no digest is out of date.
    """

    def __init__(self, cache: Path | None = None) -> None:
        self._cache = cache
        self._examined: dict[str, Examined] = _read_cache(cache)
        self._is_new = False
        self._modules: dict[str, tuple[str, tuple[str, ...]]] = {}
        self._reached: dict[tuple[str, ...], dict[str, str]] = {}
        self._folders = functools.cache(_folders)
        # module -> its source file; None if there is none
        self.file = functools.cache(lambda module: find_module(module, self._folders))
        self._is_local = functools.cache(self._is_outside_packages)

    def reached(self, roots: Iterable[str]) -> dict[str, str]:
        """Return module -> digest for `roots` and all modules that they import, directly or not; sorted by name.

        Imports are followed into realm_lab, into the packages of the roots, and into code that is neither installed nor
        in the standard library, such as a file in the working folder.
        """
        key = tuple(sorted(set(roots)))
        if key not in self._reached:
            packages = {OURS, *(root.partition(".")[0] for root in key)}
            self._reached[key] = self._walk(key, lambda top: top in packages or self._is_local(top))
        return self._reached[key]

    def outside(self, root: str) -> dict[str, str]:
        """Return module -> digest for one module and those that it imports from its package, if they have a file."""
        package = root.partition(".")[0]
        found = self._walk((root,), lambda top: top == package != OURS)
        return {name: digest for name, digest in found.items() if name == root or digest != MISSING}

    def _walk(self, roots: tuple[str, ...], follows: Callable[[str], bool]) -> dict[str, str]:
        """Return the modules reached by following imports into the packages that `follows` accepts."""
        found: dict[str, str] = {}
        waiting = list(roots)
        while waiting:
            module = waiting.pop()
            if module not in found:
                found[module], imported = self._module(module)
                waiting += [name for name in imported if follows(name.partition(".")[0])]
        return dict(sorted(found.items()))

    def source(self, path: Path) -> str:
        """Return the digest of a Python file, computed from its syntax as for a module."""
        return self._file(path.stem, path)[0]

    def save(self) -> None:
        """Write the cache, if it has grown."""
        if self._is_new and self._cache is not None:
            write_text(self._cache, json.dumps(self._examined))  # indented JSON takes seven times as long to write
            self._is_new = False

    def _module(self, module: str) -> tuple[str, tuple[str, ...]]:
        """Return (digest, modules that it imports)."""
        if module not in self._modules:
            path = self.file(module)
            self._modules[module] = (MISSING, ()) if path is None else self._file(module, path)
        return self._modules[module]

    def _file(self, module: str, path: Path) -> tuple[str, tuple[str, ...]]:
        source = path.read_bytes()
        package = module if path.name == "__init__.py" else module.rpartition(".")[0]
        key = hashlib.sha256(f"{FORMAT} {package} ".encode() + source).hexdigest()[: 2 * DIGITS]
        if key not in self._examined:
            self._examined[key] = _examine(source, path, package)
            self._is_new = True
        digest, imports = self._examined[key]
        names = module.split(".")  # importing a.b.c runs a and a.b as well
        found = [".".join(names[:count]) for count in range(1, len(names))]
        for base, name in imports:
            is_module = name and self.file(f"{base}.{name}") is not None
            found.append(f"{base}.{name}" if is_module else base)
        return digest, tuple(found)

    def _is_outside_packages(self, top: str) -> bool:
        """True for code that is neither installed nor of the standard library, such as a file in the working folder."""
        folders = () if top in sys.stdlib_module_names else self._folders(top)
        return bool(folders) and not any(INSTALLED & set(folder.parts) for folder in folders)


def differing(before: Mapping[str, str], now: Mapping[str, str]) -> list[str]:
    """Return the modules whose digests differ between two records, or that only one of the records has."""
    return sorted(name for name in before.keys() | now.keys() if before.get(name) != now.get(name))


def outside_digest(module: str) -> str | dict[str, str]:
    """Return the digest of a custom module, or module -> digest if it imports modules of its package. MISSING: not a
    Python file."""
    found = CodeReader().outside(module)
    return found[module] if len(found) == 1 else found


def package_modules() -> list[str]:
    """Return all modules of realm_lab."""
    paths = (path.relative_to(PACKAGE.parent).with_suffix("") for path in sorted(PACKAGE.rglob("*.py")))
    return [".".join(path.parts).removesuffix(".__init__") for path in paths]


def reach_working_folder() -> None:
    """Make modules of the working folder importable, as under `python -m`, but search it after everything installed."""
    if os.getcwd() not in sys.path:
        sys.path.append(os.getcwd())


def find_module(module: str, folders: Callable[[str], tuple[Path, ...]]) -> Path | None:
    """Return the source file of a module; None if there is none. `folders`: top-level name -> folders (`_folders`)."""
    top, *parts = module.split(".")
    for folder in folders(top):
        path = folder.joinpath(*parts)
        if parts and path.with_suffix(".py").is_file() and not (path / "__init__.py").is_file():
            return path.with_suffix(".py")
        if not parts and folder.suffix == ".py":
            return folder
        if (path / "__init__.py").is_file():
            return path / "__init__.py"
    return None


def _folders(top: str) -> tuple[Path, ...]:
    """Return the folders of a package, or the file of a module that is in no package."""
    if top == OURS:
        return (PACKAGE,)
    reach_working_folder()
    try:
        spec = importlib.util.find_spec(top)
    except (ImportError, ValueError):
        return ()
    if spec is None:
        return ()
    if spec.submodule_search_locations:
        return tuple(Path(folder) for folder in spec.submodule_search_locations)
    return (Path(spec.origin),) if spec.origin and spec.origin.endswith(".py") else ()


@functools.cache
def _examine(source: bytes, path: Path, package: str) -> Examined:
    """Return the digest and the imports of a source file. UserError: it is not Python."""
    try:
        tree = ast.parse(source)
    except (SyntaxError, ValueError) as error:
        raise UserError(error, "mend it", path=path) from None
    dump: list[str] = []
    _dump(tree, dump.append)
    digest = hashlib.sha256("".join(dump).encode()).hexdigest()[:DIGITS]
    return digest, tuple(dict.fromkeys(_imports(tree, package)))


def _imports(node: ast.AST, package: str) -> Iterator[tuple[str, str]]:
    """Return (module, name) of each import; the name is "" if a whole module is imported."""
    if isinstance(node, ast.Import):
        yield from ((alias.name, "") for alias in node.names)
    elif isinstance(node, ast.ImportFrom):
        above = package.split(".")
        base = above[: len(above) - node.level + 1] if node.level else []
        module = ".".join([*base, *([node.module] if node.module else [])])
        yield from ((module, alias.name) for alias in node.names)
    elif isinstance(node, ast.If) and re.fullmatch(r"(\w+\.)*TYPE_CHECKING", ast.unparse(node.test)):
        for branch in node.orelse:
            yield from _imports(branch, package)
    else:
        for child in ast.iter_child_nodes(node):
            if isinstance(child, _MAY_IMPORT):
                yield from _imports(child, package)


def _dump(node: object, put: Callable[[str], None]) -> None:
    """Pass a syntax tree to `put` as text, without docstrings, empty fields and fields that vary by Python version."""
    if isinstance(node, ast.AST):
        put(f"{type(node).__name__}(")
        for name in node._fields:
            value = getattr(node, name, None)
            if value is None or value == [] or name in ("type_comment", "kind", "ctx"):
                continue
            put(f"{name}=")
            _dump(value, put)
        put(")")
    elif isinstance(node, list):
        for one in node:
            if not (isinstance(one, ast.Expr) and isinstance(one.value, ast.Constant) and type(one.value.value) is str):
                _dump(one, put)
                put(",")
    else:
        put(repr(node))


def _read_cache(cache: Path | None) -> dict[str, Examined]:
    """Read the cache of digests; empty if it cannot be read, since digests can be computed again."""
    try:
        found = read_json(cache) if cache is not None and cache.is_file() else {}
        return {
            key: (digest, tuple((base, name) for base, name in imports)) for key, (digest, imports) in found.items()
        }
    except (UserError, OSError, ValueError, TypeError, AttributeError):
        return {}
