"""Copy the splits that preprocessing wrote into a training job's folder."""

import logging
import shutil
from pathlib import Path

from contracts.paths import SPLITS, JobPaths
from contracts.steps import TABULAR_PREPROCESSING

logger = logging.getLogger(__name__)


def copy_into_job(root: Path, job: Path) -> int:
    """Copy each written split to the channel of its name; files of an earlier copy are replaced. Return 0."""
    written, paths = TABULAR_PREPROCESSING.output("processed_data").path(root), JobPaths.resolve(job)
    for split in SPLITS:
        channel = paths.channel(split)
        for old in channel.glob(f"{split}_processed_data*"):
            old.unlink()
        for path in sorted((written / split).glob(f"{split}_processed_data*")):
            channel.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(path, channel / path.name)
    logger.info("the splits are in %s; train with: python -m container train --root %s", paths.channel(""), job)
    return 0
