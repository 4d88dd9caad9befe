# quintet on the CPU.  Build: docker build -t quintet .
# Run: docker run --rm -v "$PWD/runs:/work/runs" quintet train ppo --env CartPole-v1
FROM python:3.13-slim

# uv finds the CPU build of PyTorch, which is a tenth of the size of the one with CUDA; GCC compiles
# acts and updates; EGL draws MuJoCo without a display.
# hadolint ignore=DL3008
RUN apt-get update \
    && apt-get install --no-install-recommends --yes g++ libegl1 libgl1 libopengl0 \
    && rm -rf /var/lib/apt/lists/* \
    && pip install --no-cache-dir uv==0.13.8

WORKDIR /src
COPY pyproject.toml MANIFEST.in README.md LICENSE CHANGELOG.md constraints.txt ./
COPY quintet quintet
RUN uv pip install --system --no-cache --torch-backend cpu \
        --constraints constraints.txt ".[all]" \
    && useradd --create-home --uid 1000 quintet \
    && mkdir /work && chown quintet /work

USER 1000
WORKDIR /work
ENTRYPOINT ["quintet"]
CMD ["--help"]
