# The image of the leader hosts:     docker build --tag streamlease:0.1.0 .
# The same with Spark and Java:      docker build --tag streamlease:0.1.0-spark --build-arg EXTRAS=spark .
# With the demo and its data:        docker build --tag streamlease:0.1.0-demo --build-arg EXTRAS=demo .
# By digest:                         --build-arg PYTHON_TAG=3.12-slim-bookworm@sha256:...

ARG PYTHON_TAG=3.12-slim-bookworm

FROM python:${PYTHON_TAG} AS builder
ARG EXTRAS=""
ENV PIP_NO_CACHE_DIR=1 \
    PIP_DISABLE_PIP_VERSION_CHECK=1
WORKDIR /build
RUN python -m venv /opt/streamlease
# Dependencies first: these layers stay as long as the pins stay.
COPY docker/select_pins.py docker/
COPY requirements/build.txt requirements/base.txt requirements/
RUN /opt/streamlease/bin/pip install --require-hashes --requirement requirements/build.txt \
    && python docker/select_pins.py requirements/base.txt $EXTRAS > pins.txt \
    && /opt/streamlease/bin/pip install --no-deps --no-build-isolation --require-hashes --requirement pins.txt
COPY pyproject.toml README.md ./
COPY src/ src/
COPY protocol/ protocol/
COPY streams/ streams/
COPY registry/ registry/
COPY leader/ leader/
COPY borrower/ borrower/
COPY catalog/ catalog/
COPY queries/ queries/
COPY hosts/ hosts/
COPY executor/ executor/
COPY agent/ agent/
COPY http_client/ http_client/
COPY channels/ channels/
COPY gateway/ gateway/
COPY services/ services/
COPY testing/ testing/
COPY spark/ spark/
COPY admin/ admin/
COPY examples/ examples/
RUN /opt/streamlease/bin/pip wheel --no-deps --no-build-isolation --wheel-dir wheels . \
    && /opt/streamlease/bin/pip install --no-deps wheels/streamlease-*.whl \
    && /opt/streamlease/bin/pip check \
    && if [ -n "$EXTRAS" ]; then /opt/streamlease/bin/python -m streamlease.spark.setup.unpacking; fi \
    && /opt/streamlease/bin/pip uninstall --yes setuptools pip

FROM python:${PYTHON_TAG}
ARG EXTRAS=""
LABEL org.opencontainers.image.title="streamlease" \
      org.opencontainers.image.licenses="Apache-2.0"
RUN groupadd --gid 10001 streamlease \
    && useradd --uid 10001 --gid 10001 --no-create-home --home-dir /tmp --shell /usr/sbin/nologin streamlease \
    && if [ -n "$EXTRAS" ]; then \
        apt-get update \
        && apt-get install --yes --no-install-recommends openjdk-17-jre-headless \
        && rm -rf /var/lib/apt/lists/*; \
    fi
COPY --from=builder /opt/streamlease /opt/streamlease
ENV PATH="/opt/streamlease/bin:${PATH}" \
    HOME=/tmp \
    PYTHONUNBUFFERED=1 \
    PYTHONDONTWRITEBYTECODE=1
WORKDIR /tmp
USER 10001:10001
EXPOSE 8080
STOPSIGNAL SIGTERM
ENTRYPOINT ["streamlease"]
CMD ["serve"]
