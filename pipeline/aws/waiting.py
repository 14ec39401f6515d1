"""Wait for an endpoint, with a line of progress."""

import time
from collections.abc import Callable
from typing import Any

from contracts.errors import ContractError
from pipeline.aws.operator import Operator
from pipeline.progress import Progress

POLL_SECONDS = 15.0
BUSY = ("Creating", "Updating", "SystemUpdating", "RollingBack", "Deleting")


def wait_for_endpoint(operator: Operator, name: str, *, look: Callable[[], object] = lambda: None) -> dict[str, Any]:
    """Return the description of an endpoint when it is not busy any more.

    Args:
        look: called at each look at the endpoint, such as for its alarms.

    Raises:
        ContractError: the endpoint failed, or was deleted meanwhile.
    """
    progress, began = Progress(), time.monotonic()
    while True:
        endpoint = operator.look_up("describe_endpoint", EndpointName=name)
        if endpoint is None:
            raise ContractError(f"endpoint {name}: was deleted while the command waited for it", "Deploy again.")
        look()
        status = endpoint["EndpointStatus"]
        progress.show(f"{name}: {status}", f", {time.monotonic() - began:,.0f} s")
        if status not in BUSY:
            break
        time.sleep(POLL_SECONDS)
    progress.end()
    if status != "InService":
        raise ContractError(
            f"endpoint {name}: is {status}: {endpoint.get('FailureReason', 'without a reason')}",
            f"Look at its log: /aws/sagemaker/Endpoints/{name}. Then delete it, and deploy again.",
        )
    return endpoint
