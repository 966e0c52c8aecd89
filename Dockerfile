# mailprobe in a container: `docker build -t mailprobe .`, or `podman build --format docker -t mailprobe .`
# (the format keeps the health check). Without git in the build, `--build-arg SOURCE_COMMIT=$(git rev-parse HEAD)`
# tells `mailprobe --version` the commit.
#
# It runs as an unprivileged user, and the root file system may be read only: it writes to /data
# alone, and not even there if MAILPROBE_DATABASE is a postgresql:// URL. The image has no installer
# and no compiler.

FROM python:3.13-slim AS build
ARG SOURCE_COMMIT
WORKDIR /src

# The locked packages, checked by their hashes: what running needs, with the extra for `mailprobe mcp`, and
# what the build needs.
COPY requirements-mcp.lock ./
RUN pip wheel --no-cache-dir --require-hashes --wheel-dir /wheels -r requirements-mcp.lock

COPY pyproject.toml setup.py README.md LICENSE NOTICE ./
COPY examples/list.csv ./examples/list.csv
COPY docs ./docs
COPY dev/mailprobe.1 ./dev/mailprobe.1
COPY mailprobe ./mailprobe
COPY engine ./engine
COPY storage ./storage
COPY api ./api
COPY bench ./bench
RUN pip install --no-cache-dir --no-index --find-links /wheels setuptools markdown-it-py pygments \
 && pip wheel --no-cache-dir --no-index --no-deps --no-build-isolation --wheel-dir /wheels .

# Only what the program needs, from the wheels alone. sqlite-utils depends on pip for a command of its
# own, which mailprobe does not use.
RUN python -m venv --without-pip /opt/mailprobe \
 && pip --python /opt/mailprobe/bin/python install --no-cache-dir --no-index --find-links /wheels 'mailprobe[mcp]' \
 && pip --python /opt/mailprobe/bin/python uninstall --yes pip

FROM python:3.13-slim
# The base image's own tools. The build fails if an installer is left.
RUN pip uninstall --yes pip \
 && rm -rf /usr/local/lib/python3.*/ensurepip /usr/local/lib/python3.*/idlelib /usr/local/include \
      /usr/local/bin/idle* /usr/local/bin/pydoc* /usr/local/bin/python*-config
COPY --from=build /opt/mailprobe /opt/mailprobe
RUN install -d -o 10001 -g 10001 -m 0700 /data
ENV PATH=/opt/mailprobe/bin:$PATH \
    PYTHONDONTWRITEBYTECODE=1 \
    PYTHONUNBUFFERED=1 \
    MAILPROBE_BIND=0.0.0.0:8080 \
    MAILPROBE_TOOLS_BIND=0.0.0.0:8081
RUN python -c "from importlib.util import find_spec; assert not any(map(find_spec, ['pip', 'ensurepip', 'setuptools']))"
USER 10001:10001
# Where the default database is data/mailprobe.db, and the file of settings /mailprobe.toml.
WORKDIR /
VOLUME /data
EXPOSE 8080 8081
STOPSIGNAL SIGTERM
# It asks where MAILPROBE_BIND says: set that and not `--bind`.
HEALTHCHECK --interval=10s --timeout=3s --start-period=20s --retries=3 \
    CMD ["python", "-m", "mailprobe.api.health_check"]
ENTRYPOINT ["mailprobe"]
CMD ["serve"]
