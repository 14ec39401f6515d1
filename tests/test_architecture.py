"""Check what import-linter (pyproject.toml) cannot: the modules that a start imports, and the length of functions."""

import ast
import sys

from testing.jobs import REPOSITORY, run_python


def imports(path):
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from (name.name for name in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: relative import"
            yield node.module


def test_contracts_import_no_other_package_of_the_project():
    for path in (REPOSITORY / "contracts").rglob("*.py"):
        for module in imports(path):
            root = module.split(".")[0]
            assert root in {"contracts", "pydantic", "pydantic_core"} | sys.stdlib_module_names, f"{path}: {module}"


def product():
    return [path for name in ("contracts", "container", "pipeline") for path in (REPOSITORY / name).rglob("*.py")]


def test_a_function_has_at_most_60_lines():
    longer = {"_train"}  # to be divided
    for path in product():
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.FunctionDef) and node.name not in longer:
                assert node.end_lineno - node.lineno < 60, f"{path}: {node.name}"


# Lines from the first to the last use of a local name that says nothing about its value.
MOST_LINES = 3
VAGUE = {"each", "found", "given", "some"}
# Functions in which such a name lives longer: fewer only.
LONGER = 52


def test_few_functions_have_a_vague_name_that_lives_longer_than_three_lines():
    longer = []
    for path in product():
        for function in ast.walk(ast.parse(path.read_text())):
            if isinstance(function, ast.FunctionDef):
                lines: dict[str, list[int]] = {}
                for node in ast.walk(function):
                    if isinstance(node, ast.Name) and node.id in VAGUE:
                        lines.setdefault(node.id, []).append(node.lineno)
                longer += [
                    f"{path}: {function.name}: {name}" for name, of in lines.items() if max(of) - min(of) > MOST_LINES
                ]
    assert len(longer) <= LONGER, longer


def test_the_formatter_decides_how_every_line_of_the_product_looks():
    for path in product():
        assert "fmt: skip" not in path.read_text(), f"{path}: join words to a text that is split, or name a part"


START_FAST = [
    "container",
    "container.job.supervisor",
    "container.commands",
    "container.predictor",
    "container.preprocessing.prepare",
    "container.text.encoder_source",
    "container.evaluation.evaluate",
    "container.evaluation.fit_decision",
    "container.decision.decision",
    "container.demo_data",
    "container.serving.server",
    "container.serving.inference",
    "container.steps.packaging",
    "container.steps.payload",
    "container.models.families",
    "container.tuning.search",
    "container.companion.fit",
    "container.companion.blend",
]


def test_a_module_that_must_start_fast_imports_neither_torch_nor_the_sagemaker_sdk():
    code = (
        "import importlib, sys\n"
        f"for name in {START_FAST}:\n"
        "    importlib.import_module(name)\n"
        "    slow = {'torch', 'transformers', 'sagemaker', 'boto3'} & sys.modules.keys()\n"
        "    if slow: sys.exit(f'{name} imports {slow}')"
    )
    done = run_python(code)
    assert done.returncode == 0, done.stderr


def test_what_a_worker_imports_of_lower_packages_imports_neither_scikit_learn_nor_pandas_nor_matplotlib():
    code = (
        "import sys, container.preprocessing.prepare, container.evaluation.metrics, container.evaluation.fit_decision\n"
        "sys.exit(str({'sklearn', 'pandas', 'matplotlib'} & sys.modules.keys() or ''))"
    )
    assert not run_python(code).stderr.strip()


def test_the_entry_point_of_a_package_changes_the_import_path_in_a_package_alone():
    code = "import sys; before = list(sys.path); import container.serving.inference; sys.exit(sys.path != before)"
    assert run_python(code).returncode == 0
