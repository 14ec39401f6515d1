# The training image. Build: docker build -t text-table-trainer .   (docs/image.md: other bases, GPUs, what is inside)
#
# Needs a base with Python 3.11 and pip. The CPU build takes torch's CPU wheel from wherever pip is told to look for it
# (PIP_EXTRA_INDEX_URL). For GPUs: --build-arg ACCELERATOR=cuda. With MLflow: --build-arg EXTRAS=mlflow.
# `make lock-base` adds the digest that the registry gives.
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
# For GPUs: a compiler, which torch.compile needs beside the base's Python.h. EFA_INSTALLER is a version of AWS's installer of
# libfabric and NCCL's plugin for EFA; EFA_SHA256 is the hash of its archive.
ARG ACCELERATOR=cpu
ARG EFA_INSTALLER=
ARG EFA_SHA256=
RUN set -e; packages=; archive="aws-efa-installer-${EFA_INSTALLER}.tar.gz"; \
    if [ "${ACCELERATOR}" = cuda ] && ! command -v g++ > /dev/null; then packages="gcc g++"; fi; \
    if [ -n "${EFA_INSTALLER}" ]; then packages="${packages} ca-certificates curl"; fi; \
    if [ -z "${packages}" ]; then exit 0; fi; \
    apt-get update; \
    apt-get install --yes --no-install-recommends ${packages}; \
    if [ -n "${EFA_INSTALLER}" ]; then \
        cd /tmp; \
        curl --fail --silent --show-error --remote-name "https://efa-installer.amazonaws.com/${archive}"; \
        echo "${EFA_SHA256}  ${archive}" | sha256sum --check; \
        tar xf "${archive}"; \
        cd aws-efa-installer; \
        ./efa_installer.sh --yes --skip-kmod --skip-limit-conf --no-verify; \
        find /opt/amazon/ofi-nccl -name 'libnccl-net*.so' | grep .; \
        rm -rf "/tmp/${archive}" /tmp/aws-efa-installer; \
    fi; \
    rm -rf /var/lib/apt/lists/*
# Without them, NVIDIA's container runtime shows no GPU to a container on a base that is not NVIDIA's.
ENV NVIDIA_VISIBLE_DEVICES=all NVIDIA_DRIVER_CAPABILITIES=compute,utility
COPY --from=packages /opt/venv /opt/venv
COPY --from=sbom /build/python.cdx.json /usr/share/sbom/python.cdx.json
COPY requirements/debian_packages.py /usr/share/sbom/
RUN python /usr/share/sbom/debian_packages.py > /usr/share/sbom/debian.cdx.json
WORKDIR /opt/trainer
COPY contracts contracts
COPY container container
RUN python -m compileall -q contracts container
ARG BASE_IMAGE
ARG REVISION=unknown
ENV TRAINER_REVISION=${REVISION}
LABEL org.opencontainers.image.title="text-table-trainer" org.opencontainers.image.revision="${REVISION}" \
    org.opencontainers.image.base.name="${BASE_IMAGE}"
# `serve` listens on SAGEMAKER_BIND_TO_PORT, so the image can share an endpoint with other containers.
LABEL com.amazonaws.sagemaker.capabilities.accept-bind-to-port=true
# Exec form: SIGTERM must reach the supervisor. The service appends "train"; local runs may leave it out.
ENTRYPOINT ["python", "-m", "container"]
CMD ["train"]
