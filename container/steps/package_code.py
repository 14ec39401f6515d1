"""Find the content of a package's code/: the entry point, the project modules it imports, and other distributions."""

import ast
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path

import container
import contracts
from container.serving import inference
from contracts.serving import ENTRY_POINT

_PROJECT = {package.__name__: Path(str(package.__file__)).parent.parent for package in (container, contracts)}
_ENTRY_MODULE = "container.serving.handler"
# Imported when the model is loaded. Other imports inside functions are for training only.
_IMPORTED_LATER = ("onnxruntime",)
_INSTALLED_BY_OTHERS = ("pydantic_core",)  # pinned by a pinned package


@dataclass(frozen=True)
class ServingCode:
    """The code of a package.

    Attributes:
        files: the files by path in code/.
        requirements: distributions that the files import, with the installed versions.
    """

    files: dict[str, Path]
    requirements: tuple[str, ...]


def serving_code() -> ServingCode:
    """Return the entry point of SageMaker's inference containers and every project module that it imports."""
    imported = imported_code(_ENTRY_MODULE)
    return ServingCode({ENTRY_POINT: Path(inference.__file__), **imported.files}, imported.requirements)


def imported_code(entry_module: str) -> ServingCode:
    """Return a module of this project and every project module that it imports, directly or indirectly."""
    files: dict[str, Path] = {}
    others: set[str] = set(_IMPORTED_LATER)
    waiting, seen = [entry_module], set[str]()
    while waiting:
        module = waiting.pop()
        if module in seen:
            continue
        seen.add(module)
        path = _file(module)
        assert path is not None, f"{module} is a module"
        files[str(path.relative_to(_PROJECT[module.split(".")[0]]))] = path
        if "." in module:
            waiting.append(module.rpartition(".")[0])
        for name in _imports(path):
            root = name.split(".")[0]
            if root in _PROJECT:
                if _file(name) is not None:
                    waiting.append(name)
            elif root not in sys.stdlib_module_names and root not in _INSTALLED_BY_OTHERS:
                others.add(root)
    return ServingCode(files, tuple(f"{name}=={version(name)}" for name in sorted(others)))


def _file(module: str) -> Path | None:
    root = _PROJECT[module.split(".", maxsplit=1)[0]]
    path = root.joinpath(*module.split("."))
    return next((file for file in (path.with_suffix(".py"), path / "__init__.py") if file.is_file()), None)


def _imports(path: Path) -> Iterator[str]:
    """Yield the modules that importing a module imports; for `from a import b` both a and a.b."""
    for node in ast.parse(path.read_text("utf-8")).body:
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.module is not None, "imports are absolute"
            yield node.module
            yield from (f"{node.module}.{alias.name}" for alias in node.names)
