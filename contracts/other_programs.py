"""Work in folders that other programs also read and write: SageMaker's uploader, file managers and editors.

While a job runs, SageMaker's uploader puts F.sagemaker-uploading beside a file F that it uploads, and
F.sagemaker-uploaded afterwards. It does not upload these markers, nor what is named .sagemaker-ignore: files with this
ending, as AWS's XGBoost container writes them, and folders of this name, as SageMaker Debugger does.
"""

import shutil
import time
from contextlib import suppress
from pathlib import Path

NOT_UPLOADED = ".sagemaker-ignore"
UNFINISHED_OUTPUT = f".unfinished{NOT_UPLOADED}"  # a file in the folders that a step writes
MARKERS = (".sagemaker-uploading", ".sagemaker-uploaded")
_PASSES = 20  # a file that appears during one pass is removed in the next


def is_foreign(path: Path) -> bool:
    """Return whether the name is that of another program's file: a marker, or a name that begins with a dot."""
    return path.name.startswith(".") or path.name.endswith(MARKERS)


def remove_folder(folder: Path) -> None:
    """Remove a folder, if it exists, also while another program puts files into it.

    It loses its name first, where the file system allows it: if this is interrupted, nothing takes the rest for
    complete, and it is not uploaded.
    """
    if not folder.is_dir():
        return
    parent = folder.parent / NOT_UPLOADED
    parent.mkdir(exist_ok=True)
    with suppress(OSError):  # a mounted folder, or one of an image
        folder = folder.rename(parent / f"{folder.name}-{time.time_ns()}")
    remove_in_place(folder)
    with suppress(OSError):  # it has something else
        parent.rmdir()


def remove_in_place(folder: Path) -> None:
    """Remove a folder as far as possible, without an error."""
    for number in range(_PASSES):
        shutil.rmtree(folder, ignore_errors=True)
        if not folder.exists():
            break
        time.sleep(number / 1000)
