# The service in a container that is not root, cannot write where its code lies, and holds exact versions.
#
#   docker build -t zipfel .
#   docker run --read-only --cap-drop ALL -p 127.0.0.1:8000:8000 -v "$PWD/runs/light:/models/light:ro" zipfel /models/light
#
# For a build that is the same for ever, add the digest that your registry shows: python:3.11.7-slim-bookworm@sha256:...
ARG PYTHON=python:3.11.7-slim-bookworm

FROM ${PYTHON} AS build
ENV PIP_NO_CACHE_DIR=1 PIP_DISABLE_PIP_VERSION_CHECK=1
RUN python -m venv /opt/zipfel
WORKDIR /src
COPY pyproject.toml constraints.txt README.md LICENSE ./
COPY zipfel zipfel
RUN /opt/zipfel/bin/pip install -c constraints.txt '.[serve]'

FROM ${PYTHON}
RUN useradd --uid 10001 --no-create-home --home-dir /nonexistent --shell /usr/sbin/nologin zipfel
COPY --from=build /opt/zipfel /opt/zipfel
ENV PATH=/opt/zipfel/bin:$PATH PYTHONUNBUFFERED=1 PYTHONDONTWRITEBYTECODE=1 OMP_NUM_THREADS=1
USER 10001:10001
WORKDIR /models
EXPOSE 8000
HEALTHCHECK --start-period=30s --interval=10s --timeout=3s \
    CMD ["python", "-c", "import urllib.request; urllib.request.urlopen('http://127.0.0.1:8000/ready', timeout=2)"]
# Within a container loopback is the container's own: who may reach it is decided by -p.
ENTRYPOINT ["zipfel", "serve", "--host", "0.0.0.0"]
CMD ["--help"]
