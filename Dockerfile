# The training image. Build: docker build -t text-table-trainer .   (docs/image.md: other bases, GPUs, what is inside)
#
# Needs a base with Python 3.11 and pip. The CPU build takes torch's CPU wheel from wherever pip is told to look for it
# (PIP_EXTRA_INDEX_URL). For GPUs: --build-arg ACCELERATOR=cuda. With MLflow: --build-arg EXTRAS=mlflow.
ARG BASE_IMAGE=python:3.11-slim-bookworm

FROM ${BASE_IMAGE} AS packages
ARG ACCELERATOR=cpu
ARG EXTRAS=
ARG PIP_EXTRA_INDEX_URL=
ENV PIP_NO_CACHE_DIR=1 PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_ROOT_USER_ACTION=ignore
WORKDIR /build
COPY requirements/*.txt ./
# Wheels only: nothing compiles here, so nothing of a package runs before its hash is known to be right.
RUN python -m venv --without-pip /opt/venv \
    && python -m pip --python /opt/venv install --quiet --require-hashes --only-binary :all: \
       -r image.txt -r "${ACCELERATOR}.txt" $(for extra in ${EXTRAS}; do echo "-r ${extra}.txt"; done) \
    && python -m pip --python /opt/venv check \
    && /opt/venv/bin/python -c "import torch; print('torch', torch.__version__, 'CUDA', torch.version.cuda)"

FROM packages AS sbom
RUN python -m venv /opt/sbom \
    && /opt/sbom/bin/python -m pip install --quiet --require-hashes --only-binary :all: -r sbom.txt \
    && /opt/sbom/bin/cyclonedx-py environment /opt/venv/bin/python --output-reproducible -o /build/python.cdx.json

FROM ${BASE_IMAGE}
ENV PATH=/opt/venv/bin:${PATH} PYTHONPATH=/opt/trainer PYTHONUNBUFFERED=1
# Without them, NVIDIA's container runtime shows no GPU to a container on a base that is not NVIDIA's.
ENV NVIDIA_VISIBLE_DEVICES=all NVIDIA_DRIVER_CAPABILITIES=compute,utility
COPY --from=packages /opt/venv /opt/venv
COPY --from=sbom /build/python.cdx.json /usr/share/sbom/python.cdx.json
WORKDIR /opt/trainer
COPY contracts contracts
COPY container container
RUN python -m compileall -q contracts container
ARG REVISION=unknown
LABEL org.opencontainers.image.title="text-table-trainer" org.opencontainers.image.revision="${REVISION}"
# `serve` listens on SAGEMAKER_BIND_TO_PORT, so the image can share an endpoint with other containers.
LABEL com.amazonaws.sagemaker.capabilities.accept-bind-to-port=true
# Exec form: SIGTERM must reach the supervisor. The service appends "train"; local runs may leave it out.
ENTRYPOINT ["python", "-m", "container"]
CMD ["train"]
