# One image a role, from one file: `docker build --target router|encoder|worker .`; `--target sbom` lists what is in them.
#
# CPU by default. CUDA: `--build-arg TORCH_INDEX=` takes the build with CUDA that the package index serves, and the driver
# comes from the node's container runtime.
ARG BASE=python:3.11-slim-bookworm

# What the project depends on, without its code, texts and settings of tools: a change there installs nothing anew.
FROM ${BASE} AS needs
WORKDIR /src
COPY pyproject.toml requirements.lock ./
COPY triptych/version.py ./triptych/
RUN sed -i -e '/^\[tool\.pytest/,$d' -e '/^dev = \[/,/^\]/d' -e '/^readme/d' -e '/^license/d' pyproject.toml

FROM ${BASE} AS build
ENV PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_NO_CACHE_DIR=1 PIP_ROOT_USER_ACTION=ignore
WORKDIR /src
COPY --from=needs /src ./
RUN python -m venv --without-pip /opt/triptych

# No container can keep what it compiles at its start, because the root is read-only: compiled code belongs to the images.
# The smallest of them, the router's, has only that of the modules that it loads, and no downloader (hf-xet): it is offline.
FROM build AS needs-router
RUN python -m pip --python /opt/triptych/bin/python install --no-compile -c requirements.lock '.[router]' \
    && python -m pip --python /opt/triptych/bin/python uninstall --yes hf-xet \
    && find /opt/triptych -type d -name tests -prune -exec rm -rf {} +

# Where a build of torch without CUDA is found; empty: only the package index.
FROM build AS needs-worker
ARG TORCH_INDEX=https://download.pytorch.org/whl/cpu
RUN python -m pip --python /opt/triptych/bin/python install -c requirements.lock \
        ${TORCH_INDEX:+--extra-index-url "$TORCH_INDEX"} '.[worker]'

FROM needs-worker AS needs-encoder
RUN python -m pip --python /opt/triptych/bin/python install -c requirements.lock '.[encoder]'

FROM build AS code
COPY pyproject.toml README.md LICENSE ./
COPY triptych ./triptych
COPY common ./common
COPY services ./services
RUN python -m pip wheel --no-deps --wheel-dir /wheel .

FROM ${BASE} AS base
RUN groupadd --gid 10001 triptych \
    && useradd --uid 10001 --gid 10001 --home-dir /tmp --no-create-home --shell /usr/sbin/nologin triptych
ENV PATH=/opt/triptych/bin:$PATH PYTHONUNBUFFERED=1 PYTHONDONTWRITEBYTECODE=1 PYTHONSAFEPATH=1 \
    HF_HUB_OFFLINE=1 OMP_WAIT_POLICY=PASSIVE RAY_USAGE_STATS_ENABLED=0 HOME=/tmp
WORKDIR /tmp
EXPOSE 50051
STOPSIGNAL SIGTERM
HEALTHCHECK --interval=10s --timeout=10s --start-period=300s --retries=3 CMD ["triptych", "probe", "127.0.0.1:50051"]

# The project itself is a layer of its own on top of what it needs.
FROM base AS router
COPY --from=needs-router /opt/triptych /opt/triptych
COPY --from=code /wheel /wheel
RUN pip --python /opt/triptych/bin/python install --no-cache-dir --no-deps --force-reinstall /wheel/*.whl \
    && PYTHONDONTWRITEBYTECODE="" python -P -c "import services.router.service, triptych.cli"
USER 10001:10001
EXPOSE 8000
CMD ["python", "-P", "-m", "services.router"]

FROM base AS encoder
COPY --from=needs-encoder /opt/triptych /opt/triptych
# A KubeRay operator starts Ray in a login shell, which makes its own PATH.
RUN echo "PATH=/opt/triptych/bin:\$PATH" >/etc/profile.d/triptych.sh
COPY --from=code /wheel /wheel
RUN pip --python /opt/triptych/bin/python install --no-cache-dir --no-deps --force-reinstall /wheel/*.whl
USER 10001:10001
EXPOSE 9090
CMD ["python", "-P", "-m", "services.encoder"]

FROM base AS worker
COPY --from=needs-worker /opt/triptych /opt/triptych
COPY --from=code /wheel /wheel
RUN pip --python /opt/triptych/bin/python install --no-cache-dir --no-deps --force-reinstall /wheel/*.whl
USER 10001:10001
EXPOSE 9090
CMD ["python", "-P", "-m", "services.decode"]

# What is in each image, as CycloneDX: `docker build --target sbom --output sbom .`
FROM build AS lister
RUN python -m pip --python /opt/triptych/bin/python install --no-compile -c requirements.lock cyclonedx-bom
RUN --mount=type=bind,from=router,source=/opt/triptych,target=/image/router \
    --mount=type=bind,from=encoder,source=/opt/triptych,target=/image/encoder \
    --mount=type=bind,from=worker,source=/opt/triptych,target=/image/worker \
    mkdir /sbom && for image in router encoder worker; do \
        /opt/triptych/bin/cyclonedx-py environment --of JSON --output-reproducible --no-validate \
            -o "/sbom/$image.cdx.json" "/image/$image/bin/python" || exit 1; \
    done

FROM scratch AS sbom
COPY --from=lister /sbom /
