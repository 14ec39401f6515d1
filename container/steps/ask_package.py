"""Load an unpacked package and send it requests, in a process that can import only the packaged project code.

Run as a script, `python -I ask_package.py TASK`. TASK is a JSON file:
    package: the folder; guarded: whether to block training's libraries and the network;
    requests: [{"file": ..., "content_type": ..., "accept": ...}]; answers: the file to write.
The answers: {"load_seconds": ..., "answers": [base64, ...]}, or {"error": ..., "fix": ..., "detail": traceback}.
"""

import base64
import importlib
import json
import os
import runpy
import socket
import sys
import time
import traceback
from pathlib import Path
from typing import Any, NoReturn

TRAINING_ONLY = ("torch", "transformers", "onnx", "onnxscript", "sklearn", "pandas", "sagemaker", "boto3")


class _Blocked:
    """An import finder that refuses the packages that are not installed for serving."""

    def find_spec(self, name: str, *_: Any) -> None:
        if name.partition(".")[0] in TRAINING_ONLY:
            raise ImportError(f"the package imports {name}, which is not installed where the model is served")


def _no_network(*_: Any, **__: Any) -> NoReturn:
    raise OSError("the package uses the network, which an endpoint with network isolation does not have")


def _ask(task: dict[str, Any]) -> dict[str, Any]:
    if task["guarded"]:
        sys.meta_path.insert(0, _Blocked())
        socket.socket.connect = _no_network  # type: ignore[method-assign]
        socket.getaddrinfo = _no_network
    package = Path(task["package"])
    sys.path.insert(0, str(package / "code"))
    began = time.perf_counter()
    # This project's copy: the package has no server.
    served = runpy.run_path(str(Path(__file__).parents[2] / "contracts" / "inference_script.py"))
    os.environ.setdefault(served["MODEL_FOLDER_VARIABLE"], str(package))
    script = served["Script"](importlib.import_module("inference"))
    script.load(str(package))
    loaded = time.perf_counter() - began
    answers = []
    for request in task["requests"]:
        content_type, accept = request["content_type"], request["accept"]
        body = served["body_of"](Path(request["file"]).read_bytes(), content_type)
        text, *_ = script.answer(body, content_type, accept, {"Content-Type": content_type, "Accept": accept})
        raw = text.encode() if isinstance(text, str) else bytes(text)
        answers.append(base64.b64encode(raw).decode())
    return {"load_seconds": loaded, "answers": answers}


def main() -> None:
    task = json.loads(Path(sys.argv[1]).read_text("utf-8"))
    try:
        result = _ask(task)
    except (Exception, SystemExit) as error:
        # The errors of the package's own copy of contracts/errors.py have a cause and a fix.
        cause = getattr(error, "cause", f"{type(error).__name__}: {error}")
        fix = getattr(error, "fix", "") or "See the traceback in the log."
        result = {"error": cause, "fix": fix, "detail": traceback.format_exc()}
    Path(task["answers"]).write_text(json.dumps(result), "utf-8")


if __name__ == "__main__":
    main()
