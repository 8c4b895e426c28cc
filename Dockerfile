# The service in a container that is not root, cannot write where its code lies, and holds exact versions.
#
#   docker build --build-arg TORCH_INDEX=URL -t zipfel .    # URL: the index of CPU wheels that pytorch.org names
#   docker run --read-only --cap-drop ALL -p 127.0.0.1:8000:8000 -v "$PWD/runs/light:/models/light:ro" zipfel /models/light
#
# For a build that is the same for ever, give the digest that your registry shows for the base image:
#   docker build --build-arg TORCH_INDEX=URL --build-arg DIGEST=sha256:... -t zipfel .
# The packages of requirements.lock take 1.3 GB as installed, compiled Python included; torch (for the CPU, x86_64) is 0.7 of that.
ARG PYTHON=python:3.11.14-slim-bookworm
ARG DIGEST=

FROM ${PYTHON}${DIGEST:+@${DIGEST}} AS build
# torch for the CPU is not on PyPI; the hashes of the lock file decide what is installed, wherever it comes from
ARG TORCH_INDEX
RUN test -n "${TORCH_INDEX}" || { echo "give --build-arg TORCH_INDEX=URL, the index of torch's CPU wheels"; exit 1; }
ENV PIP_NO_CACHE_DIR=1 PIP_DISABLE_PIP_VERSION_CHECK=1
RUN python -m venv /opt/zipfel
WORKDIR /src
COPY requirements.lock ./
RUN /opt/zipfel/bin/pip install --require-hashes --no-deps --only-binary :all: --extra-index-url "${TORCH_INDEX}" -r requirements.lock
COPY pyproject.toml README.md LICENSE ./
COPY zipfel zipfel
RUN /opt/zipfel/bin/pip install --no-deps --no-build-isolation . && /opt/zipfel/bin/pip uninstall --yes pip

FROM ${PYTHON}${DIGEST:+@${DIGEST}}
RUN useradd --uid 10001 --no-create-home --home-dir /nonexistent --shell /usr/sbin/nologin zipfel
COPY --from=build /opt/zipfel /opt/zipfel
ENV PATH=/opt/zipfel/bin:$PATH PYTHONUNBUFFERED=1 PYTHONDONTWRITEBYTECODE=1 OMP_NUM_THREADS=1
USER 10001:10001
WORKDIR /models
EXPOSE 8000
# It asks where the options of the service say that it listens.
HEALTHCHECK --start-period=30s --interval=10s --timeout=5s CMD ["python", "-m", "zipfel.server.probe"]
# Within a container loopback is the container's own: who may reach it is decided by -p.
ENTRYPOINT ["zipfel", "serve", "--host", "0.0.0.0"]
CMD ["--help"]
