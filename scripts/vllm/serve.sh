#!/bin/sh
# serve.sh PORT MODEL [flags of vllm serve]: a real vLLM on loopback, in the foreground, as model `tiny`. MODEL is memo, rand or any.
#
# VLLM_WORK is where setup.sh put everything, VLLM_CORE the processor core to run on (one core each, about 4.6 GB), TEMPLATE the chat
# template: qwen3, qwen3_6 or qwen3_8.
set -eu
work=${VLLM_WORK:-$(cd "$(dirname "$0")/../.." && pwd)/target/vllm}
port=${1:?usage: serve.sh PORT MODEL [flags]}
model=$work/models/${2:?usage: serve.sh PORT MODEL [flags]}
shift 2
[ -e "$model/.done" ] || { echo "serve.sh: there is no model $model; setup.sh makes it" >&2; exit 1; }
export VLLM_TARGET_DEVICE=cpu VLLM_CPU_KVCACHE_SPACE=1 VLLM_CPU_OMP_THREADS_BIND="${VLLM_CORE:-0}" OMP_NUM_THREADS=1
export VLLM_HOST_IP=127.0.0.1 VLLM_CACHE_ROOT="$work/cache" HF_HOME="$work/cache/hf"
export VLLM_NO_USAGE_STATS=1 DO_NOT_TRACK=1 HF_HUB_OFFLINE=1 TRANSFORMERS_OFFLINE=1 TOKENIZERS_PARALLELISM=false
# float32 and eager: at temperature 0 the same prompt gives the same tokens, alone or among others.
exec "$work/venv/bin/vllm" serve "$model" --served-model-name tiny --host 127.0.0.1 --port "$port" \
  --dtype float32 --enforce-eager --max-model-len 2048 --max-num-seqs 8 \
  --chat-template "$model/${TEMPLATE:-qwen3_6}.jinja" --reasoning-parser qwen3 \
  --enable-auto-tool-choice --tool-call-parser hermes --enable-scale-out "$@"
