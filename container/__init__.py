"""What runs inside the image. Never imports the SageMaker SDK; importing this package imports no torch."""

import os

# The official builds of ONNX Runtime send what they run to their maker since 1.29; the data here is our users' own.
os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")  # read when it is imported; 0, set by the user, turns it on again
