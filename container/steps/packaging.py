"""Package: read a trained model; write a model.tar.gz for SageMaker hosting."""

import ast
import logging
import sys
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path

import container
import contracts
from container.serving import inference
from container.serving.model import ServedModel
from container.steps.archives import extract_archive, write_archive
from container.steps.program import StepRun
from contracts import artifacts
from contracts.errors import ContractError
from contracts.input_files import exists, files_below
from contracts.package_inputs import CalibrationMap, read_scripts
from contracts.serving import CALIBRATION, CODE_FOLDER, ENTRY_POINT, ServingSettings
from contracts.steps import ARCHIVED_MODEL

logger = logging.getLogger(__name__)

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


_SCRIPTS = "input inference_scripts_input"
REQUIREMENTS = "requirements.txt"


def run(step: StepRun) -> None:
    """Pack the model, its code and optional inputs; the same inputs give the same bytes.

    Raises:
        ContractError: an artifact is missing or does not load, or a script or the calibration is invalid.
    """
    source, model = model_folder(step)
    members: dict[str, Path | bytes] = dict(served_files(source, model, include_weights=step.settings.include_weights))
    calibration = step.input("calibration_model")
    if calibration is not None:
        members |= _members([calibration / CALIBRATION], calibration, place="input calibration_model")
    # Load the model here, as an endpoint would load it an hour later.
    served = ServedModel.load(model, ServingSettings())
    if calibration is not None:
        served.calibrate(CalibrationMap.read(calibration / CALIBRATION))
    code = serving_code()
    given: dict[str, Path] = {}
    if (scripts := step.input("inference_scripts_input")) is not None:
        given = read_scripts(scripts, place=_SCRIPTS)
        _members(given.values(), scripts, place=_SCRIPTS)
    requirements = "".join(f"{line}\n" for line in code.requirements).encode()
    if (own := given.pop(REQUIREMENTS, None)) is not None:
        logger.info("%s: %s is added; this project's image does not install it.", _SCRIPTS, own.name)
        requirements += own.read_bytes()
    members[f"{CODE_FOLDER}/{REQUIREMENTS}"] = requirements
    members |= {f"{CODE_FOLDER}/{name}": path for name, path in (code.files | given).items()}
    package = step.output("packaged_model") / ARCHIVED_MODEL
    write_archive(package, members)
    logger.info(
        f"{package}: {len(members)} files, {package.stat().st_size / 1e6:.1f} MB; serves "
        f"{', '.join(served.feature_inputs)}, classes {', '.join(map(str, served.class_labels))}"
    )


def model_folder(step: StepRun) -> tuple[Path, Path]:
    """Return the input's folder or archive, for messages, and the folder of the model's files."""
    folder = step.required_input("model_input")
    archive = folder / ARCHIVED_MODEL
    if not archive.is_file():
        return folder, folder
    if (folder / artifacts.MODEL_ONNX).exists():
        raise ContractError(
            f"input model_input: {folder} contains both {ARCHIVED_MODEL} and {artifacts.MODEL_ONNX}", "Remove one."
        )
    extract_archive(archive, step.scratch / "model")
    return archive, step.scratch / "model"


def served_files(source: Path, model: Path, *, include_weights: bool) -> dict[str, Path]:
    """Return the files that serving reads, by name in the package.

    Args:
        source: the place of `model`, for messages.
    """
    required = [*artifacts.SERVING_FILES, *(artifacts.TRAINED_WEIGHTS if include_weights else ())]
    for name in required:
        if not (model / name).is_file():
            present = ", ".join(sorted(entry.name for entry in model.iterdir()))
            raise ContractError(
                f"{source}: has no {name}; it contains {present}",
                "Provide the complete model/ of a completed training job.",
            )
    more = {*model.glob("model.*.onnx"), *model.glob("model*.onnx.data")}  # variants, and weights beyond 2 GiB
    # Earlier versions did not write these.
    more |= {path for name in (artifacts.MODEL_FILES, artifacts.BASELINE) if (path := model / name).is_file()}
    if include_weights:
        more |= set(model.glob(artifacts.COMPANION))  # model.pth alone is the network without it
    tokenizers = set(files_below(model / artifacts.TOKENIZER).files) if exists(model / artifacts.TOKENIZER) else set()
    return _members({*(model / name for name in required), *more, *tokenizers}, model, place=str(source))


def _members(files: Iterable[Path], folder: Path, *, place: str) -> dict[str, Path]:
    """Return files by path relative to `folder`.

    Raises:
        ContractError: a link, which could lead to any file of this machine.
    """
    members = {path.relative_to(folder).as_posix(): path for path in files}
    for name, path in members.items():
        for part in (path, *path.parents[: len(Path(name).parts) - 1]):
            if part.is_symlink():
                raise ContractError(
                    f"{place}: {name} would be packed through the link {part.relative_to(folder)} -> {part.readlink()}",
                    "Replace the link by the files themselves, or remove it.",
                )
    return members
