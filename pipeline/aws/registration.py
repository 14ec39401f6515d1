"""Build the step that registers a model package with its metrics, sample requests and model card."""

from types import SimpleNamespace
from typing import Any

from contracts.serving import REQUEST_TYPES, RESPONSE_TYPES
from contracts.steps import EVALUATION, MODEL_METRICS, PAYLOAD, PAYLOAD_ARCHIVE, REGISTRATION
from pipeline.aws.jobs import Build, output_uri, service_retries
from pipeline.aws.parameters import APPROVAL
from pipeline.aws.serving import container_definition
from pipeline.card import DOMAIN, TASK, model_card
from pipeline.plan import StepPlan


def registration_step(build: Build, plan: StepPlan) -> Any:
    """Return the step. The SDK's register() is not used because it calls S3 while the definition is built."""
    from sagemaker.core.model_metrics import MetricsSource, ModelMetrics
    from sagemaker.core.model_registry import create_model_package_from_containers, get_model_package_args
    from sagemaker.core.shapes import ModelPackageModelCard
    from sagemaker.core.workflow.functions import Join
    from sagemaker.mlops.workflow.model_step import ModelStep

    def file(step: Any, output: str, name: str) -> Any:
        return Join(on="/", values=[output_uri(build, step, output), name])

    evaluation = MetricsSource(
        content_type="application/json", s3_uri=file(MODEL_METRICS, "metrics_output", EVALUATION)
    )
    variables = build.plan.step(REGISTRATION).environment
    card = model_card(
        build.config,
        build.plan.hyperparameters,
        searched=build.plan.tuner.space if build.plan.tuner else (),
        image=build.aws.image,
        outcome=None,
    )
    # A ModelStep reads only the session from the model.
    build.session.init_model_step_arguments(SimpleNamespace(sagemaker_session=build.session))
    create_model_package_from_containers(
        build.session,
        **get_model_package_args(
            container_def_list=[container_definition(build, variables)],
            content_types=list(REQUEST_TYPES),
            response_types=list(RESPONSE_TYPES),
            inference_instances=list(build.config.registration.inference_instances),
            transform_instances=list(build.config.registration.transform_instances),
            model_package_group_name=build.config.group,
            model_metrics=ModelMetrics(model_statistics=evaluation),
            approval_status=build.parameters.get(APPROVAL, build.config.registration.approval),
            customer_metadata_properties={"condition_metric": build.config.condition.metric},
            domain=DOMAIN,
            task=TASK,
            sample_payload_url=file(PAYLOAD, "payload_sample", PAYLOAD_ARCHIVE),
            skip_model_validation="None",
            model_card=ModelPackageModelCard(model_card_content=card, model_card_status="Draft"),
        ),
    )
    return ModelStep(
        name=plan.contract.name,
        description=plan.contract.about,
        step_args=build.session.context,
        retry_policies=[service_retries(build.aws)],
    )
