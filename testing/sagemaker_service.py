"""What moto's SageMaker lacks: updates of endpoints that take time and go back, steps of executions, and answers."""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from unittest.mock import patch

from moto.cloudwatch.models import cloudwatch_backends
from moto.core.responses import ActionResult
from moto.sagemaker.models import SageMakerModelBackend
from moto.sagemaker.responses import SageMakerResponse
from moto.sagemakerruntime.models import SageMakerRuntimeBackend

ACCOUNT, REGION = "123456789012", "eu-west-1"
_describe = SageMakerModelBackend.describe_endpoint


class Service:
    """The state that moto's backend has not.

    Attributes:
        updates: the requests of UpdateEndpoint, in order.
        looks: descriptions of an endpoint until its update ends.
        answer: the answer of every endpoint.
        steps: the steps of every execution.
        pending: by endpoint: the configuration of an update, its alarms, and the number of descriptions so far.
    """

    def __init__(self) -> None:
        self.updates: list[dict[str, Any]] = []
        self.looks = 2
        self.answer = ""
        self.steps: list[dict[str, Any]] = []
        self.pending: dict[str, tuple[str, list[str], int]] = {}

    def update(self, backend: SageMakerModelBackend, request: dict[str, Any]) -> dict[str, Any]:
        """Begin an update, as the service does."""
        name, target = request["EndpointName"], request["EndpointConfigName"]
        endpoint = _describe(backend, name)
        backend.describe_endpoint_config(target)  # an error where it does not exist
        rollback = request.get("DeploymentConfig", {}).get("AutoRollbackConfiguration", {})
        self.updates.append(request)
        self.pending[name] = (target, [alarm["AlarmName"] for alarm in rollback.get("Alarms", [])], 0)
        return {"EndpointArn": endpoint["EndpointArn"]}

    def describe(self, backend: SageMakerModelBackend, endpoint_name: str) -> dict[str, Any]:
        """Describe an endpoint; at the end of its update, it has the new configuration unless an alarm fires."""
        if endpoint_name in self.pending:
            target, alarms, looks = self.pending[endpoint_name]
            if looks < self.looks:
                self.pending[endpoint_name] = (target, alarms, looks + 1)
                pending = {"EndpointStatus": "Updating", "PendingDeploymentSummary": {"EndpointConfigName": target}}
                return {**_describe(backend, endpoint_name), **pending}
            del self.pending[endpoint_name]
            states = [cloudwatch_backends[ACCOUNT][REGION].alarms[alarm].state_value for alarm in alarms]
            if "ALARM" not in states:
                backend.endpoints[endpoint_name].endpoint_config_name = target
        return _describe(backend, endpoint_name)


@contextmanager
def complete_sagemaker() -> Iterator[Service]:
    """Add to moto's server what it lacks, for the duration of the context."""
    service = Service()

    def describe(self: SageMakerModelBackend, endpoint_name: str) -> dict[str, Any]:
        return service.describe(self, endpoint_name)

    def update(self: SageMakerResponse) -> ActionResult:
        return ActionResult(service.update(self.sagemaker_backend, json.loads(self.body)))

    def steps(self: SageMakerResponse) -> ActionResult:
        return ActionResult({"PipelineExecutionSteps": service.steps})

    def invoke(self: SageMakerRuntimeBackend, endpoint_name: str, unique_repr: bytes) -> tuple[str, str, str, str]:
        return service.answer, "application/json", "AllTraffic", ""

    with (
        patch.object(SageMakerModelBackend, "describe_endpoint", describe),
        patch.object(SageMakerResponse, "update_endpoint", update, create=True),
        patch.object(SageMakerResponse, "list_pipeline_execution_steps", steps, create=True),
        patch.object(SageMakerRuntimeBackend, "invoke_endpoint", invoke),
        # moto knows no provisioned concurrency; the product checks the dimension against botocore's model.
        patch("moto.applicationautoscaling.models._target_params_are_valid", lambda *_: True),
        patch("moto.applicationautoscaling.responses.ApplicationAutoScalingResponse._validate_params", lambda _: None),
    ):
        yield service
