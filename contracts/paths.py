"""Define the folder layout under a job's root, /opt/ml by default."""

import os
from dataclasses import dataclass
from pathlib import Path

DEFAULT_ROOT = "/opt/ml"
ROOT_VARIABLE = "ML_ROOT"
SPLITS = ("train", "val", "test")
CHANNEL_ALIASES = {"training": "train", "validation": "val", "testing": "test"}  # names in SageMaker's examples
SETTINGS_FILE = "settings.json"  # of the input settings: {name: text} of what a job's request cannot contain


@dataclass(frozen=True)
class JobPaths:
    """The folder layout of a training job; every path is a function of `root`.

    Attributes:
        trial: name of the training job, if jobs with other hyperparameters have the same folder of checkpoints.
        aliases: names of CHANNEL_ALIASES that channels of the job have.
        checkpoint_folder: that of the job's request; None: checkpoints/.
        tensorboard_folder: that of the job's request; None: output/tensorboard/.

    Example:
        >>> paths = JobPaths.resolve("/opt/ml")
        >>> str(paths.channel("train")), str(paths.model)
        ('/opt/ml/input/data/train', '/opt/ml/model')
    """

    root: Path
    trial: str = ""
    aliases: frozenset[str] = frozenset()
    checkpoint_folder: Path | None = None
    tensorboard_folder: Path | None = None

    @classmethod
    def resolve(cls, root: str | os.PathLike[str] | None = None) -> "JobPaths":
        """Return the layout under `root`, else under $ML_ROOT, else under /opt/ml."""
        return cls(Path(root or os.environ.get(ROOT_VARIABLE) or DEFAULT_ROOT).absolute())

    def channel(self, name: str) -> Path:
        """Return the folder with the files of an input channel, e.g. train."""
        given = next((alias for alias in self.aliases if CHANNEL_ALIASES[alias] == name), name)
        return self.root / "input" / "data" / given

    @property
    def initial_model(self) -> Path:
        return self.channel("initial_model")

    @property
    def precomputed_artifacts(self) -> Path:
        return self.channel("model_artifacts_input")

    @property
    def pretrained(self) -> Path:
        return self.channel("pretrained")

    @property
    def settings(self) -> Path:
        return self.channel("settings")

    @property
    def config(self) -> Path:
        return self.root / "input" / "config"

    @property
    def init_record(self) -> Path:
        """What `init` warned of, for the report."""
        return self.config / "init.json"

    @property
    def split_record(self) -> Path:
        """The split of each row of the table that `init` read."""
        return self.config / "splits.parquet"

    @property
    def hyperparameter_files(self) -> tuple[Path, ...]:
        """Return the files of hyperparameters; a later one takes precedence."""
        return (
            self.root / "code" / "hyperparams" / "hyperparameters.json",
            self.settings / SETTINGS_FILE,
            self.config / "hyperparameters.json",
        )

    @property
    def resource_config(self) -> Path:
        return self.config / "resourceconfig.json"

    @property
    def checkpoint_config(self) -> Path:
        """Return the file in which the service says that, and where, it restores and saves checkpoints."""
        return self.config / "checkpointconfig.json"

    @property
    def model(self) -> Path:
        return self.root / "model"

    @property
    def output_data(self) -> Path:
        return self.root / "output" / "data"

    @property
    def written(self) -> tuple[Path, ...]:
        """Return the folders that the job writes, besides its root."""
        results = self.model, self.output_data, self.tensorboard
        return *results, self.checkpoints, self.tuning, self.ensemble, self.prepared

    @property
    def failure_files(self) -> tuple[Path, Path]:
        """Return the file that the service reads, and its copy among the outputs."""
        return self.root / "output" / "failure", self.output_data / "failure"

    @property
    def tensorboard(self) -> Path:
        """Return the folder of TensorBoard's files; the default is that of SageMaker."""
        return self.tensorboard_folder or self.root / "output" / "tensorboard"

    @property
    def checkpoints(self) -> Path:
        return (self.checkpoint_folder or self.root / "checkpoints") / self.trial

    @property
    def tuning(self) -> Path:
        """Return the folder of a search: its study and the runs of its trials."""
        return self.checkpoints / "tuning"

    @property
    def ensemble(self) -> Path:
        """Return the folder of the runs of the networks of an ensemble."""
        return self.checkpoints / "ensemble"

    @property
    def prepared(self) -> Path:
        """Return the folder of prepared data, which a later run with the same inputs reuses; never uploaded.

        In a warm pool, it is in the folder that the instance keeps for the next job, which the service creates.
        """
        warm_pool = self.root / "sagemaker" / "warmpoolcache"
        return (warm_pool if warm_pool.is_dir() else self.root) / "prepared"

    @property
    def digests(self) -> Path:
        """Return the file with the digests of the inputs, so that the next run reads only files that have changed."""
        return self.prepared / ".digests.json"
