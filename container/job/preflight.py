"""Check the hyperparameters before data is prepared: errors first, then warnings and advice."""

import logging
import os
from collections.abc import Callable
from functools import partial

from container.cores import available_cores
from container.job.hosts.gpus import count_gpus
from container.job.log_once import log_detail, log_once
from container.job.processes import missing_for_compile
from container.parallel.degrees import ParallelDegrees
from container.parallel.encoder_checks import check_encoders, warn_of_layer_settings
from contracts.errors import ContractError
from contracts.hyperparameter_files import ChosenSettings, GivenSettings, choose_settings, describe_hyperparameters
from contracts.hyperparameters import Hyperparameters
from contracts.model_classes import FROM_SCRATCH
from contracts.paths import JobPaths
from contracts.presets import DataFacts
from contracts.spelling import counted
from contracts.step_contract import ProcessingSettings
from contracts.unused_settings import unused_settings

logger = logging.getLogger(__name__)

_SHOWN_VALUE = 40  # characters of a value in the table of the preset


def choose_job_settings(
    paths: JobPaths,
    given: GivenSettings,
    facts: DataFacts | None = None,
    *,
    hosts: int,
    num_gpus: int,
    also: Callable[[Hyperparameters], object] = lambda _: None,
) -> Hyperparameters:
    """Return the configuration of a job; log what its preset chooses and why, each line once per process.

    The preset chooses no value with which the job cannot run on these hosts. The settings of a search are not checked
    like this, because its trials have others.

    Args:
        facts, hosts: see `choose_settings`, whose errors and those of `check_settings` this function raises.
        also: a further check, which raises ContractError.
    """

    def check(hp: Hyperparameters) -> None:
        also(hp)
        if hp.tuning is None:
            check_settings(paths, hp, hosts=hosts, per_host=processes_per_host(hp, num_gpus=num_gpus))

    chosen = choose_settings(given, facts, hosts=hosts, check=check)
    if chosen.chosen and (facts is not None or chosen.hp.tuning is not None):  # else it has not chosen everything
        log_once(logger, logging.INFO, preset_table(chosen))
    return _logged(chosen)


def choose_trial_settings(
    paths: JobPaths, given: GivenSettings, facts: DataFacts | None = None, *, num_workers: int
) -> Hyperparameters:
    """Return the configuration of a trial, like `choose_job_settings`: the preset chooses for each trial anew.

    Args:
        given: with the settings that the search drew for the trial.
        num_workers: processes of the trial.
    """
    check = partial(check_settings, paths, hosts=1, per_host=num_workers)
    return _logged(choose_settings(given, facts, check=check))


def preset_table(chosen: ChosenSettings) -> str:
    """Return what the preset chose, a line for each setting with its reason."""
    names = [max(map(len, chosen.chosen)), max(len(_cut(value)) for value, _ in chosen.chosen.values())]
    rows = [
        f"  {name:{names[0]}}  {_cut(value):{names[1]}}  {reason}" for name, (value, reason) in chosen.chosen.items()
    ]
    return "\n".join([f"preset {chosen.hp.preset} chose {counted(len(rows), 'setting')}:", *rows])


def _cut(value: str) -> str:
    return value if len(value) <= _SHOWN_VALUE else f"{value[: _SHOWN_VALUE - 3]}..."


def _logged(chosen: ChosenSettings) -> Hyperparameters:
    for line in chosen.lines:
        log_once(logger, logging.INFO, line, detail=True)
    return chosen.hp


def processes_per_host(hp: Hyperparameters, *, num_gpus: int) -> int:
    """Return the number of processes on each host."""
    return hp.nproc_per_node or num_gpus or 1


def check_settings(paths: JobPaths, hp: Hyperparameters, *, hosts: int, per_host: int) -> ParallelDegrees:
    """Check without logging; the arguments and errors are those of `check_before_preparing`."""
    degrees = ParallelDegrees.resolve(hp, hosts * per_host, per_host=per_host)
    check_encoders(paths, hp, degrees, has_gpu=count_gpus() > 0)
    _check_compiler(hp)
    return degrees


def check_before_preparing(paths: JobPaths, hp: Hyperparameters, *, hosts: int, per_host: int) -> None:
    """Run every check that needs no data, in order.

    Args:
        hosts: number of hosts that train.
        per_host: number of processes on each host.

    Raises:
        ContractError: the job cannot run with these settings on these processes.
    """
    ProcessingSettings.from_environment(os.environ)
    _check_threads(hp, per_host=per_host)
    degrees = check_settings(paths, hp, hosts=hosts, per_host=per_host)
    for line in describe_hyperparameters(hp):
        log_detail(logger, "%s", line)
    for sentence in unused_settings(hp, degrees.features(hp)):
        logger.warning("%s", sentence)
    warn_of_layer_settings(paths, hp, degrees)
    _warn_of_attention_dropout(hp)
    _warn_of_frozen_random_embeddings(hp)
    _suggest_head_lr(hp)


def _check_threads(hp: Hyperparameters, *, per_host: int) -> None:
    """Raise ContractError if a worker has fewer cores than threads."""
    cores, workers = available_cores(), per_host * (hp.tuning.parallel or 1 if hp.tuning else 1)
    most = max(1, cores // workers)
    if hp.num_threads != "auto" and hp.num_threads > most:
        raise ContractError(
            f"num_threads: is {hp.num_threads}, but this machine has {counted(cores, 'core')} for "
            f"{counted(workers, 'worker')}",
            f"Set it to a number from 1 to {most}, or to auto.",
        )


def _check_compiler(hp: Hyperparameters) -> None:
    """Raise ContractError if torch.compile would not find what it needs at run time."""
    if hp.compile is True and (missing := missing_for_compile()):
        raise ContractError(
            f"compile: is true, but {missing}, which torch.compile needs at run time",
            "Set compile to false, or build the image on a base that has gcc, g++ and Python's header files.",
        )


def _warn_of_attention_dropout(hp: Hyperparameters) -> None:
    if any(name.startswith("attention") and value for name, value in hp.encoder_config.items() if "drop" in name):
        logger.warning("attention dropout is 0: packed attention has none; the value in encoder_config has no effect")


def _warn_of_frozen_random_embeddings(hp: Hyperparameters) -> None:
    for text in hp.text_fields:
        if text.tokenizer == FROM_SCRATCH and not text.is_embeddings_trainable:
            logger.warning(
                f"{text.source('is_embeddings_trainable', hp.model_fields_set)}: is false, and the embeddings of "
                f"{text.name!r} are {FROM_SCRATCH}: they stay random. Set it to true, or use a pretrained encoder."
            )


def _suggest_head_lr(hp: Hyperparameters) -> None:
    pretrained = [field.tokenizer for field in hp.text_fields if field.tokenizer != FROM_SCRATCH]
    if pretrained and hp.head_lr is None and hp.lr < 2e-4:
        logger.info(
            f"head_lr is not set: all parameters learn at lr={hp.lr:g}. With a pretrained encoder, head_lr=1e-3 "
            "usually gives a much better model; preset=recommended chooses it and more."
        )
