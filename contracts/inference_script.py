"""Check and call the functions of an inference.py, as SageMaker's inference toolkit does (its transformer.py, 1.10).

The step Payload loads this file by its path beside a package. So it imports the standard library only.
"""

import ast
import inspect
from collections.abc import Iterator, Mapping, Sequence
from types import ModuleType
from typing import Any

# The parameters of each function. A function with one more gets the context as the last one.
PARAMETERS = {
    "pre_model_fn": ("model_dir",),
    "model_fn": ("model_dir",),
    "model_warmup_fn": ("model_dir", "model"),
    "transform_fn": ("model", "input_data", "content_type", "accept"),
    "input_fn": ("input_data", "content_type"),
    "predict_fn": ("data", "model"),
    "output_fn": ("prediction", "accept"),
}
FUNCTIONS = ("model_fn", "input_fn", "predict_fn", "output_fn")
TEXT_TYPES = ("application/json", "text/csv")  # whose bodies are passed as text
MODEL_FOLDER_VARIABLE = "SM_MODEL_DIR"
_REPLACED = FUNCTIONS[1:]  # by transform_fn
_OK = 200


class Headers(dict[str, str]):
    """The headers of a request; the case of a name does not matter, as in "X-Amzn-SageMaker-Custom-Attributes"."""

    def __init__(self, headers: Mapping[str, str]) -> None:
        super().__init__({name.title(): value for name, value in headers.items()})

    def __getitem__(self, name: str) -> str:
        return super().__getitem__(name.title())

    def get(self, name: str, default: Any = None) -> Any:
        return super().get(name.title(), default)


class Context:
    """The toolkit's context of a request, as far as it does not depend on the model server. A request has the index 0.

    Attributes:
        request_processor: one object, with get_request_properties() and get_request_property(key).
        status: HTTP status of the response, which a script may set.
        content_type: of the response, if a script sets it.
    """

    def __init__(self, model_dir: str, headers: Mapping[str, str]) -> None:
        self.system_properties = {"model_dir": model_dir, "gpu_id": None, "batch_size": 1}
        self.request_processor = [self]
        self.status = _OK
        self.content_type: str | None = None
        self._headers = Headers(headers)

    def get_request_properties(self) -> Headers:
        return self._headers

    def get_request_property(self, key: str) -> str | None:
        return self._headers.get(key)

    def get_all_request_header(self, idx: int) -> Headers:
        return self.request_processor[idx].get_request_properties()

    def get_request_header(self, idx: int, key: str) -> str | None:
        return self.request_processor[idx].get_request_property(key)

    def set_response_content_type(self, idx: int, value: str) -> None:
        self.request_processor[idx].content_type = value

    def set_response_status(self, code: int = _OK, phrase: str = "", idx: int = 0) -> None:  # noqa: ARG002 - the phrase follows from the code
        self.request_processor[idx].status = code


class Script:
    """The functions of an inference.py, and the model that it loads.

    Args:
        defaults: its attributes stand for functions that the script lacks.

    Raises:
        ValueError, TypeError: functions that exclude each other, or that cannot be called.
    """

    def __init__(self, module: ModuleType, *, defaults: object = None) -> None:
        own = {name: function for name in PARAMETERS if (function := getattr(module, name, None)) is not None}
        _check_names(own)
        self._with_context: set[str] = set()
        self._functions = {name: own.get(name) or getattr(defaults, name, None) for name in PARAMETERS}
        for name, function in self._functions.items():
            if function is None:
                continue
            parameters = inspect.signature(function).parameters.values()
            by_name = [each.name for each in parameters if each.kind in (each.KEYWORD_ONLY, each.VAR_KEYWORD)]
            if _takes_context(name, len(parameters) - len(by_name), by_name):
                self._with_context.add(name)

    def load(self, model_dir: str) -> None:
        """Load the model."""
        self._model_dir, context = model_dir, Context(model_dir, {})
        if self._functions["pre_model_fn"] is not None:
            self._call("pre_model_fn", context, model_dir)
        self._model = self._call("model_fn", context, model_dir)
        if self._functions["model_warmup_fn"] is not None:
            self._call("model_warmup_fn", context, model_dir, self._model)

    def answer(
        self, body: bytes | str, content_type: str | None, accept: str, headers: Mapping[str, str]
    ) -> tuple[Any, str, int]:
        """Return the body, the Content-Type and the status of the response.

        Args:
            body: as `body_of` returns it.
        """
        context = Context(self._model_dir, headers)
        if self._functions["transform_fn"] is not None:
            result = self._call("transform_fn", context, self._model, body, content_type, accept)
        else:
            data = self._call("input_fn", context, body, content_type)
            result = self._call("output_fn", context, self._call("predict_fn", context, data, self._model), accept)
        content, media_type = result if isinstance(result, tuple) else (result, context.content_type or accept)
        return content, media_type, context.status

    def _call(self, name: str, context: Context, *arguments: Any) -> Any:
        function: Any = self._functions[name]
        return function(*arguments, context) if name in self._with_context else function(*arguments)


def body_of(body: bytes, content_type: str | None) -> bytes | str:
    """Return a request's body as a script gets it; raise UnicodeDecodeError for a text that is not UTF-8."""
    return body.decode() if content_type in TEXT_TYPES else body


def check_source(source: bytes) -> None:
    """Check an inference.py without running it.

    Raises:
        ValueError: it lacks functions, or has some that exclude each other or have other parameters; names the line.
        SyntaxError: it is not Python.
    """
    tree = ast.parse(source)
    names = bound_names(tree)
    for node in _statements(tree.body):
        if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) or node.name not in PARAMETERS:
            continue
        place = f"line {node.lineno}: "
        if isinstance(node, ast.AsyncFunctionDef):
            raise ValueError(f"{place}{node.name} is asynchronous; it is called without await")
        if node.name == "transform_fn":
            _check_names(names, place)
        if not node.decorator_list:  # which may change the parameters
            each = node.args
            by_name = [argument.arg for argument in (*each.kwonlyargs, each.kwarg) if argument is not None]
            _takes_context(node.name, len(each.posonlyargs + each.args) + bool(each.vararg), by_name, place)
    _check_names(names)
    needed = ("model_fn",) if "transform_fn" in names else FUNCTIONS
    missing = [name for name in needed if name not in names]
    if missing and "*" not in names:
        raise ValueError(f"has no {', '.join(missing)}")


def _check_names(names: Mapping[str, Any] | set[str], place: str = "") -> None:
    both = [name for name in _REPLACED if name in names]
    if "transform_fn" in names and both:
        raise ValueError(f"{place}transform_fn replaces input_fn, predict_fn and output_fn, but there is {both[0]} too")


def _takes_context(name: str, count: int, by_name: Sequence[str], place: str = "") -> bool:
    """Return whether a function has a parameter more, the context.

    Args:
        count: of its parameters by position.
        by_name: its other parameters, which the toolkit would take for the context.

    Raises:
        ValueError: it has other parameters.
    """
    needed = PARAMETERS[name]
    if by_name or count not in (len(needed), len(needed) + 1):
        found = f"takes {by_name[0]} by name only" if by_name else f"has {count} parameters"
        raise ValueError(f"{place}{name} {found}; it is called with {', '.join(needed)}, or with these and context")
    return count > len(needed)


def bound_names(tree: ast.Module) -> set[str]:
    """Return the names that a module's top level defines, assigns or imports; "*" for a star import."""
    names: set[str] = set()
    for node in _statements(tree.body):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            names.add(node.name)
        elif isinstance(node, ast.Import | ast.ImportFrom):
            names.update(alias.asname or alias.name for alias in node.names)
        elif isinstance(node, ast.Assign | ast.AnnAssign) and node.value is not None:
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            bound = (each for target in targets for each in ast.walk(target) if isinstance(each, ast.Name))
            names.update(name.id for name in bound if isinstance(name.ctx, ast.Store))
    return names


def _statements(body: Sequence[ast.AST]) -> Iterator[ast.AST]:
    """Yield the statements of a module's top level, also those in its branches."""
    for node in body:
        yield node
        if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            for branch in ("body", "handlers", "orelse", "finalbody"):
                yield from _statements(getattr(node, branch, []))
