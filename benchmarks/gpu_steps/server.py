"""Run each step in a fork of a process that has imported torch, which takes seconds, and nothing else.

    python -m benchmarks.gpu_steps.server          requests on stdin, a line of JSON each; answers on stdout
    python -m benchmarks.gpu_steps.server JSON     run one request in this process

CUDA starts in the forks only. benchmarks/gpu_steps/processes.py is the other side.
"""

import ctypes
import faulthandler
import importlib
import json
import os
import sys
import time
import traceback
from typing import NoReturn

from benchmarks.gpu_steps.recorder import Recorder, Request

PRELOADED = (
    "torch",
    "torch.distributed.fsdp",
    "torch.distributed.checkpoint",
    "transformers.models.bert.modeling_bert",
    "container.job.supervisor",
    "container.job.launch.worker",
)
_PR_SET_CHILD_SUBREAPER = 36
_TO_DUMP = 2.0  # seconds before the limit at which a step that hangs writes its stacks


def main() -> None:
    if sys.argv[1:]:
        _run(Request(**json.loads(sys.argv[1])))
    for module in PRELOADED:
        importlib.import_module(module)
    ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1)  # orphans of a step become children of this process
    print("ready", flush=True)
    for line in sys.stdin:
        request = Request(**json.loads(line))
        pid = os.fork()
        if pid == 0:
            _run(request)
        print(pid, flush=True)
        ended, status = 0, 0
        while ended != pid:  # reaps orphans too
            ended, status = os.waitpid(-1, 0)
        print(os.waitstatus_to_exitcode(status), flush=True)


def _run(request: Request) -> NoReturn:
    """Become the step: its own process group, its output in its log."""
    code = 1
    try:
        os.setsid()
        log = os.open(request.log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o666)
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
        os.dup2(log, 1)
        os.dup2(log, 2)
        faulthandler.dump_traceback_later(max(0.1, request.ends_at - time.monotonic() - _TO_DUMP))
        os.environ.update(request.variables)
        getattr(importlib.import_module(request.module), request.function)(Recorder(request))
        code = 0
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else 1
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


if __name__ == "__main__":
    main()
