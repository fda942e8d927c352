# One image a role, from one file: `docker build --target router|encoder|worker .`
#
# CPU by default. CUDA: `--build-arg TORCH_INDEX=` takes the build with CUDA that the package index serves, and the driver
# comes from the node's container runtime.
ARG BASE=python:3.11-slim-bookworm

FROM ${BASE} AS source
WORKDIR /src
COPY pyproject.toml requirements.lock README.md LICENSE ./
COPY triptych ./triptych
COPY common ./common
COPY services ./services

FROM source AS build
ENV PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_NO_CACHE_DIR=1 PIP_ROOT_USER_ACTION=ignore
RUN python -m venv --without-pip /opt/triptych

FROM build AS build-router
RUN python -m pip --python /opt/triptych/bin/python install -c requirements.lock '.[router]' \
    && find /opt/triptych -name __pycache__ -prune -exec rm -rf {} +

# Where a build of torch without CUDA is found; empty: only the package index.
FROM build AS build-worker
ARG TORCH_INDEX=https://download.pytorch.org/whl/cpu
RUN python -m pip --python /opt/triptych/bin/python install -c requirements.lock \
        ${TORCH_INDEX:+--extra-index-url "$TORCH_INDEX"} '.[worker]' \
    && find /opt/triptych -name __pycache__ -prune -exec rm -rf {} +

FROM build AS build-encoder
ARG TORCH_INDEX=https://download.pytorch.org/whl/cpu
RUN python -m pip --python /opt/triptych/bin/python install -c requirements.lock \
        ${TORCH_INDEX:+--extra-index-url "$TORCH_INDEX"} '.[encoder]' \
    && find /opt/triptych -name __pycache__ -prune -exec rm -rf {} +

FROM ${BASE} AS base
RUN groupadd --gid 10001 triptych \
    && useradd --uid 10001 --gid 10001 --home-dir /tmp --no-create-home --shell /usr/sbin/nologin triptych
ENV PATH=/opt/triptych/bin:$PATH PYTHONUNBUFFERED=1 PYTHONDONTWRITEBYTECODE=1 PYTHONSAFEPATH=1 \
    HF_HUB_OFFLINE=1 OMP_WAIT_POLICY=PASSIVE RAY_USAGE_STATS_ENABLED=0 HOME=/tmp
WORKDIR /tmp
USER 10001:10001
EXPOSE 50051
STOPSIGNAL SIGTERM
HEALTHCHECK --interval=10s --timeout=10s --start-period=120s --retries=3 CMD ["triptych", "probe", "127.0.0.1:50051"]

FROM base AS router
COPY --from=build-router /opt/triptych /opt/triptych
EXPOSE 8000
CMD ["python", "-P", "-m", "services.router"]

FROM base AS encoder
COPY --from=build-encoder /opt/triptych /opt/triptych
EXPOSE 9090
CMD ["python", "-P", "-m", "services.encoder"]

FROM base AS worker
COPY --from=build-worker /opt/triptych /opt/triptych
EXPOSE 9090
CMD ["python", "-P", "-m", "services.decode"]
