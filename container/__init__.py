"""The code in the image. It never imports the SageMaker SDK; importing this package imports no torch."""

import os

# Official builds of ONNX Runtime send telemetry since 1.29. They read this at import; a user can set 0 to allow it.
os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")
