#!/usr/bin/env python3
"""Writes one of three tiny Qwen3 models into a folder that vLLM can serve. Nothing is downloaded.

    models.py MODEL --tokenizer DIR --templates DIR --out DIR [--weights FILE]

rand  random weights over plain English words: text that never ends, of which each token is one word
any   random weights over all ordinary tokens: also parts of characters, many scripts, code
memo  a few answers known by heart (train_memo.py), with thinking, an end of turn and a tool call; --weights has what it learned
"""

import argparse
import json
import pathlib
import re
import shutil

import torch
from transformers import AutoTokenizer, Qwen3Config, Qwen3ForCausalLM

VOCABULARY = 151936
END_OF_TURN = 151645  # <|im_end|>
END_OF_TEXT = 151643  # <|endoftext|>; ordinary tokens have lower ids
MEMO_SEED = 3


def config(hidden, heads, layers):
    return Qwen3Config(
        vocab_size=VOCABULARY,
        hidden_size=hidden,
        intermediate_size=2 * hidden,
        num_hidden_layers=layers,
        num_attention_heads=heads,
        num_key_value_heads=max(1, heads // 2),
        head_dim=32,
        max_position_embeddings=4096,
        rope_theta=1e6,
        rms_norm_eps=1e-6,
        tie_word_embeddings=False,
        bos_token_id=END_OF_TEXT,
        eos_token_id=END_OF_TURN,
        pad_token_id=END_OF_TEXT,
        dtype="float32",
        use_sliding_window=False,
    )


def plain_words(tokenizer):
    """The ids of tokens that are a space and a word and that stand alone: text made of them has these ids again."""
    words = []
    for token, number in tokenizer.get_vocab().items():
        if number < END_OF_TEXT and re.fullmatch("\u0120[a-z]{2,9}", token):
            if tokenizer.encode(" " + token[1:], add_special_tokens=False) == [number]:
                words.append(number)
    return sorted(words)


def random_model(ids, seed=1):
    """A model that says these ids and no others."""
    torch.manual_seed(seed)
    hidden = 64
    model = Qwen3ForCausalLM(config(hidden, heads=2, layers=2)).float().eval()
    with torch.no_grad():
        for weights in model.parameters():
            if weights.dim() >= 2:
                weights.normal_(0, 0.35)
        head = torch.zeros_like(model.lm_head.weight)
        head[ids] = torch.randn(len(ids), hidden)
        model.lm_head.weight.copy_(head)
    return model


def memo_untrained(hidden=128, heads=4, layers=3):
    """What training starts from. Its embeddings are drawn from a fixed seed, so that weights need to hold changed rows only."""
    torch.manual_seed(MEMO_SEED)
    model = Qwen3ForCausalLM(config(hidden, heads, layers)).float()
    model.model.embed_tokens.weight.requires_grad_(False)
    model.lm_head.weight.requires_grad_(False)
    with torch.no_grad():
        model.model.embed_tokens.weight.mul_(20)
    return model


def memo_model(file):
    """The reverse of train_memo.py's `pack`."""
    from safetensors.torch import load_file

    learned = load_file(file)
    layers = 1 + max(int(name.split(".")[2]) for name in learned if name.startswith("model.layers."))
    hidden = learned["model.norm.weight"].numel()
    heads = learned["model.layers.0.self_attn.q_proj.weight"].shape[0] // 32
    model = memo_untrained(hidden, heads, layers)
    with torch.no_grad():
        model.model.embed_tokens.weight[learned.pop("embed_ids").long()] = learned.pop("embed_rows")
        model.lm_head.weight.zero_()
        model.lm_head.weight[learned.pop("head_ids").long()] = learned.pop("head_rows")
        model.load_state_dict(learned, strict=False)
    return model.eval()


def save(model, out, tokenizer, templates):
    out.mkdir(parents=True, exist_ok=True)
    model.save_pretrained(out)
    for name in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copy(tokenizer / name, out)
    for name in ("qwen3.jinja", "qwen3_6.jinja", "qwen3_8.jinja"):
        shutil.copy(templates / name, out)
    generation = {
        "bos_token_id": END_OF_TEXT,
        "eos_token_id": [END_OF_TURN, END_OF_TEXT],
        "pad_token_id": END_OF_TEXT,
        "do_sample": False,
        "temperature": 0.0,
    }
    (out / "generation_config.json").write_text(json.dumps(generation))


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", choices=["rand", "any", "memo"])
    parser.add_argument("--tokenizer", type=pathlib.Path, required=True)
    parser.add_argument("--templates", type=pathlib.Path, required=True)
    parser.add_argument("--out", type=pathlib.Path, required=True)
    parser.add_argument("--weights", type=pathlib.Path)
    given = parser.parse_args()
    torch.set_num_threads(1)
    if given.model == "memo":
        model = memo_model(given.weights)
    elif given.model == "rand":
        model = random_model(plain_words(AutoTokenizer.from_pretrained(given.tokenizer)))
    else:
        model = random_model(list(range(END_OF_TEXT)))
    save(model, given.out, given.tokenizer, given.templates)


if __name__ == "__main__":
    main()
