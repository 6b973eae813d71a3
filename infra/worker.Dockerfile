# A worker in a container:
#   uv build --wheel
#   docker build -f infra/worker.Dockerfile -t baton-worker .
#   docker run -e DATABASE_URL=… baton-worker --queues default --concurrency 4 --tick
# Your own commands: add their programs here, and BATON_JOB_COMMANDS with the file that allows them.
FROM python:3.13-slim AS built
COPY requirements.lock dist/*.whl /build/
RUN python -m venv /baton \
    && /baton/bin/pip install --no-cache-dir --require-hashes -r /build/requirements.lock \
    && /baton/bin/pip install --no-cache-dir --no-deps /build/*.whl

FROM python:3.13-slim
COPY --from=built /baton /baton
RUN useradd --system --no-create-home baton
USER baton
EXPOSE 8080
HEALTHCHECK CMD ["/baton/bin/python", "-c", "import urllib.request; urllib.request.urlopen('http://127.0.0.1:8080/health', timeout=3)"]
# SIGTERM lets running jobs end; give the container longer than --grace.
STOPSIGNAL SIGTERM
ENTRYPOINT ["/baton/bin/baton", "worker", "--health", "8080"]
