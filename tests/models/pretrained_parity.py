"""Compare strategies with one process, with a tiny pretrained encoder."""

from pathlib import Path
from typing import Any

from testing.parity import ONE_PROCESS, SGD, TOLERANCE, ParityJobs, Trained, difference
from testing.parity_strategies import BY_NAME
from testing.rank_pool import RankPool
from tests.contracts.test_every_hyperparameter import pretrained_tiny


class PretrainedParity:
    """Trains one process and several strategies with the same settings.

    Args:
        folder: folder for the encoder and the runs.
        settings: added to those of a run without dropout, with SGD and a moving average.
    """

    def __init__(self, pool: RankPool, folder: Path, **settings: Any) -> None:
        pretrained_tiny(folder / "encoder")
        self._jobs = ParityJobs(pool, folder)
        no_dropout = {"dropout": 0.0, "fusion_dropout": 0.0, "encoder_config": {"hidden_dropout_prob": 0.0}}
        encoder = {"tokenizer": str(folder / "encoder"), "reinit_layers": 0}
        self._settings = {**settings, **SGD, **no_dropout, **encoder, "max_epochs": 2, "ema_decay": 0.9}
        (self._alone,) = self._jobs.train(ONE_PROCESS, self._settings)

    def check(self, name: str) -> Trained:
        """Return the results under the strategy `name`, which must equal those of one process."""
        (ours,) = self._jobs.train(BY_NAME[name], self._settings)
        found = difference(ours, self._alone)
        assert found.value <= TOLERANCE, found
        return ours
