"""Build the SDK's TuningStep: SageMaker's tuner runs training jobs with different hyperparameters."""

import json
import math
from collections.abc import Mapping, Sequence
from typing import Any

from contracts.errors import ContractError, shown
from contracts.step_contract import StepContract
from contracts.tuning import Choices, Range
from contracts.tuning_space import is_whole
from pipeline.aws.jobs import Build, cache, job_retries, tagged
from pipeline.plan import TunerPlan

_MOST_CHOICES = 30  # ParameterValues in botocore's model of the service


def tuning_step(
    build: Build, contract: StepContract, plan: TunerPlan, *, trainer: Any, metrics: Mapping[str, str], channels: Any
) -> Any:
    """Return the step that replaces the training step.

    Args:
        trainer: the training job, without the hyperparameters that the tuner chooses.
        metrics: the regular expression of each metric that a training job logs.
    """
    from sagemaker.core.shapes import RetryStrategy
    from sagemaker.mlops.workflow.steps import TuningStep

    aws, search = build.aws, build.config.tuning
    assert search is not None
    trainer.with_retry_strategy(RetryStrategy(maximum_retry_attempts=aws.retries.max_attempts))
    hyperband = search.strategy == "Hyperband"
    tuner = _tuner_class()(
        trainer,
        plan.metric.name,
        {name: _range(name, values) for name, values in plan.space.items()},
        metric_definitions=[{"Name": name, "Regex": regex} for name, regex in metrics.items()],
        strategy=search.strategy,
        strategy_config=_hyperband(plan) if hyperband else None,
        objective_type="Minimize" if plan.metric.minimizes else "Maximize",
        max_jobs=search.trials,
        max_parallel_jobs=min(search.parallel or 1, search.trials),
        max_runtime_in_seconds=math.floor(search.max_hours * 3600) if search.max_hours is not None else None,
        warm_start_config=_warm_start(build),
        early_stopping_type="Off" if hyperband else "Auto",  # Hyperband stops trials itself
        base_tuning_job_name=build.config.name,
    )
    return tagged(
        TuningStep,
        aws,
        name=contract.name,
        description=contract.about,
        step_args=tuner.tune(inputs=channels),
        cache_config=cache(aws),
        retry_policies=job_retries(aws),
    )


def _tuner_class() -> Any:
    """Return the SDK's tuner with the settings of a training job that the one of SDK 3.27 leaves out."""
    from sagemaker.train.tuner import HyperparameterTuner

    class Tuner(HyperparameterTuner):
        def _build_training_job_definition(self, inputs: Any) -> Any:
            definition = super()._build_training_job_definition(inputs)
            trainer: Any = self.model_trainer
            # Without these: no KMS key of the volume, no instance groups, no warm pool.
            definition.resource_config = trainer.compute._to_resource_config()
            definition.enable_network_isolation = trainer.networking.enable_network_isolation
            definition.enable_inter_container_traffic_encryption = (
                trainer.networking.enable_inter_container_traffic_encryption
            )
            return definition

    return Tuner


def _range(name: str, values: Range | Choices) -> Any:
    """Return a setting's values as a range of the SDK; raise ContractError if SageMaker has no such range."""
    from sagemaker.core.parameter import CategoricalParameter, ContinuousParameter, IntegerParameter

    if not isinstance(values, Range):
        return CategoricalParameter(_choices(name, values))
    scale = "Logarithmic" if values.scale == "log" else "Linear"
    if values.step is not None and not (is_whole(name) and values.step == 1):
        few = [values.low + i * values.step for i in range(_MOST_CHOICES)]
        raise ContractError(
            f"tuning.space.{name}: has the step {values.step:g}, but ranges of SageMaker's tuner have none",
            f"List the values: {name}: {shown([each for each in few if each <= values.high])}; or set engine to "
            "container.",
        )
    if is_whole(name):
        return IntegerParameter(int(values.low), int(values.high), scaling_type=scale)
    return ContinuousParameter(float(values.low), float(values.high), scaling_type=scale)


def _choices(name: str, values: Sequence[Any]) -> list[str]:
    fix = "Remove {} from the space, or set engine to container."
    for value in values:
        if isinstance(value, (list, dict)):
            kind = "a list" if isinstance(value, list) else "an object"
            raise ContractError(
                f"tuning.space.{name}: {shown(value)} is {kind}, but values of SageMaker's tuner are numbers and texts",
                fix.format(name),
            )
    if len(values) > _MOST_CHOICES:
        raise ContractError(
            f"tuning.space.{name}: has {len(values)} values; SageMaker's tuner accepts at most {_MOST_CHOICES}",
            "List fewer values, give a range, or set engine to container.",
        )
    return [value if isinstance(value, str) else json.dumps(value) for value in values]


def _hyperband(plan: TunerPlan) -> Any:
    """Return the number of metric values after which Hyperband may stop a trial, and the number of a whole one."""
    from sagemaker.core.shapes import HyperbandStrategyConfig, HyperParameterTuningJobStrategyConfig

    if plan.validations is None:
        raise ContractError(
            "tuning.strategy: Hyperband needs the number of validations, but val_check_interval is a number of steps",
            "Set hyperparameters.val_check_interval to a part of an epoch, e.g. 0.25, or strategy to Bayesian.",
        )
    if plan.networks > 1:
        raise ContractError(
            f"tuning.strategy: Hyperband compares trials after the same number of validations, but the preset trains "
            f"{plan.networks} networks in each trial, whose validations follow one another",
            "Set hyperparameters.ensemble to 1, hyperparameters.preset to recommended, or strategy to Bayesian.",
        )
    # At MaxResource the service stops a job: after the last validation come the metrics of the report and the upload.
    resources = HyperbandStrategyConfig(min_resource=max(1, plan.validations // 9), max_resource=plan.validations + 2)
    return HyperParameterTuningJobStrategyConfig(hyperband_strategy_config=resources)


def _warm_start(build: Build) -> Any:
    from sagemaker.core.shapes import HyperParameterTuningJobWarmStartConfig, ParentHyperParameterTuningJob

    search = build.config.tuning
    if search is None or search.warm_start is None:
        return None
    return HyperParameterTuningJobWarmStartConfig(
        parent_hyper_parameter_tuning_jobs=[
            ParentHyperParameterTuningJob(hyper_parameter_tuning_job_name=name) for name in search.warm_start.parents
        ],
        warm_start_type=search.warm_start.type,
    )
