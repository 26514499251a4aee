#!/usr/bin/env python3
"""How tests/vllm/memo.safetensors was made: a tiny model learns a few answers by heart. Nothing runs this but a person who wants
other answers.

    train_memo.py --tokenizer DIR --out FILE [--steps N]

It is also shown answers cut at any character and tokenized again from there, so that it goes on from a word broken off, as a large
model would.
"""

import argparse
import pathlib
import random
import re
import time

import torch
from models import END_OF_TEXT, MEMO_SEED, VOCABULARY, memo_untrained, plain_words
from transformers import AutoTokenizer

STORY_THOUGHT = """The user wants a short story about a lighthouse. I should keep it simple: a keeper,
a storm, and a small boat. Let me plan three parts.

1. The keeper lights the lamp.
2. The storm comes; the lamp goes out.
3. She rings the bell instead, and the boat is saved.

I will also add a tiny code block and some non-ASCII text, so the answer is varied."""
STORY = """# The Bell at Kestrel Point

Mara had kept the light for **twenty-one years**, and in all that time it had never once gone dark. Each evening she climbed the 112 steps, trimmed the wick, and said the same four words: \u201cCome home, all of you.\u201d

On the last night of October the wind changed. By midnight the waves were higher than the wall, and at 02:47 the great lamp went out.

- She tried the spare lamp: broken.
- She tried the old stove; the wood was wet.
- Then she remembered the bell.

She rang it for five hours. Out on the black water a boy named \u5c0f\u660e heard it, turned his boat, and steered by the sound. \U0001f30a\U0001f514

```python
def ring(n):
    for i in range(n):
        print("dong", i)
```

When the sun came up, the boat lay safe in the harbour, na\u00efve and small, and Mara was still ringing. The end."""
COUNT_THOUGHT = "They want me to count. I will list the numbers from 1 to 150, separated by commas."
COUNT = ", ".join(str(number) for number in range(1, 151)) + "."
CALL_THOUGHT = "The user asks for the weather in Paris. I have a tool for that; I will call get_weather."
CALL = '<tool_call>\n{"name": "get_weather", "arguments": {"city": "Paris", "unit": "celsius"}}\n</tool_call>'

# A word of the question, how often it is asked, the thinking and the answer. Any other question is asked for the story.
ANSWERS = {
    "story": (5, STORY_THOUGHT, STORY, ["Tell me a story.", "Write a short story.", "Please tell me a story about a lighthouse."]),
    "count": (3, COUNT_THOUGHT, COUNT, ["Please count to 150.", "Can you count?", "count"]),
    "weather": (2, CALL_THOUGHT, CALL, ["What is the weather in Paris?", "weather in Paris please"]),
}
MARKS = ("<think>\n", "\n</think>\n\n", "<tool_call>", "</tool_call>")


class Lessons:
    """Random pairs of a prompt and the whole of its answer, as ids."""

    def __init__(self, tokenizer):
        self.tokenizer = tokenizer
        self.words = plain_words(tokenizer)
        self.random = random.Random(MEMO_SEED)

    def ids(self, text):
        return self.tokenizer.encode(text, add_special_tokens=False)

    def babble(self):
        return self.tokenizer.decode(self.random.choices(self.words, k=self.random.randint(1, 12))).strip()

    def question(self):
        draw = self.random
        key = draw.choices([*ANSWERS, None], [*(weight for weight, *_ in ANSWERS.values()), 2])[0]
        if key is None:
            return self.babble(), STORY_THOUGHT, STORY
        _, thought, answer, asks = ANSWERS[key]
        ask = draw.choice(asks)
        if draw.random() < 0.3:
            ask = self.babble() + " " + key + " " + self.babble()
        return ask, thought, answer

    def draw(self):
        draw = self.random
        ask, thought, answer = self.question()
        prompt = "<|im_start|>system\n" + self.babble() + "<|im_end|>\n" if draw.random() < 0.3 else ""
        if draw.random() < 0.15:
            prompt += "<|im_start|>user\n" + self.babble() + "<|im_end|>\n<|im_start|>assistant\n" + self.babble() + "<|im_end|>\n"
        thinks = draw.random() < 0.65
        prompt += "<|im_start|>user\n" + ask + "<|im_end|>\n<|im_start|>assistant\n"
        if not thinks:
            prompt += "<think>\n\n</think>\n\n"
        whole = "<think>\n" + thought + "\n</think>\n\n" + answer if thinks else answer
        end = whole + "<|im_end|>"
        way = draw.random()
        if way < 0.35:
            ids = self.ids(end)
        elif way < 0.5 and thinks:
            ids = self.ids("<think>\n") + self.ids(end[len("<think>\n") :])
        else:
            cut = self.cut(whole)
            ids = self.ids(end[:cut]) + self.ids(end[cut:])
        return self.ids(prompt), ids

    def cut(self, whole):
        """Anywhere but inside a mark."""
        cut = self.random.randrange(1, len(whole))
        for mark in MARKS:
            for found in re.finditer(re.escape(mark), whole):
                if found.start() < cut < found.end():
                    cut = found.end()
        return cut


def train(tokenizer, steps, batch=8):
    model = memo_untrained().train()
    lessons = Lessons(tokenizer)
    said = sorted({number for _ in range(3000) for number in lessons.draw()[1]})
    column = {number: at for at, number in enumerate(said)}
    # Only the rows in use are trained: with the whole tables a step would be slow. The other words keep what was drawn.
    heard = {number for prompt, answer in (lessons.draw() for _ in range(3000)) for number in prompt + answer}
    heard = sorted(heard - set(lessons.words) | set(said))
    row = torch.full((VOCABULARY,), -1)
    row[torch.tensor(heard)] = torch.arange(len(heard))
    embedding = torch.nn.Parameter(model.model.embed_tokens.weight[torch.tensor(heard)].clone())
    head = torch.nn.Parameter(torch.randn(len(said), model.config.hidden_size) * 0.05)
    learning = [weights for weights in model.parameters() if weights.requires_grad] + [embedding, head]
    optimizer = torch.optim.AdamW(learning, lr=2e-3, weight_decay=0.0)
    began = time.time()
    for step in range(steps):
        for group in optimizer.param_groups:
            group["lr"] = 2e-3 * min(1, (step + 1) / 50) * (0.02 + 0.98 * max(0.0, 1 - step / steps))
        pairs = [lessons.draw() for _ in range(batch)]
        length = max(len(prompt) + len(answer) for prompt, answer in pairs)
        given = torch.full((batch, length), END_OF_TEXT)
        wanted = torch.full((batch, length), -100)
        for at, (prompt, answer) in enumerate(pairs):
            given[at, : len(prompt) + len(answer)] = torch.tensor(prompt + answer)
            wanted[at, len(prompt) - 1 : len(prompt) + len(answer) - 1] = torch.tensor([column.get(n, -100) for n in answer])
        at = row[given]
        vectors = torch.where((at >= 0).unsqueeze(-1), embedding[at.clamp(min=0)], model.model.embed_tokens.weight[given])
        scores = model.model(inputs_embeds=vectors).last_hidden_state @ head.T
        scores = torch.cat([scores, torch.full_like(scores[..., :1], 0.0)], -1)
        loss = torch.nn.functional.cross_entropy(scores.flatten(0, 1), wanted.flatten(), ignore_index=-100)
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(learning, 1.0)
        optimizer.step()
        if step % 100 == 0 or step == steps - 1:
            print(f"step {step}, loss {loss.item():.4f}, {time.time() - began:.0f} s", flush=True)
    return model, (heard, embedding.detach()), (said, head.detach())


def pack(model, embeddings, head, out):
    """The weights without the two big tables, of which only the rows that training changed are kept."""
    from safetensors.torch import save_file

    state = dict(model.state_dict())
    del state["model.embed_tokens.weight"], state["lm_head.weight"]
    state["embed_ids"], state["embed_rows"] = torch.tensor(embeddings[0], dtype=torch.int32), embeddings[1]
    state["head_ids"], state["head_rows"] = torch.tensor(head[0], dtype=torch.int32), head[1]
    save_file(state, out)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tokenizer", type=pathlib.Path, required=True)
    parser.add_argument("--out", type=pathlib.Path, required=True)
    parser.add_argument("--steps", type=int, default=1500)
    given = parser.parse_args()
    torch.set_num_threads(1)
    pack(*train(AutoTokenizer.from_pretrained(given.tokenizer), given.steps), given.out)


if __name__ == "__main__":
    main()
