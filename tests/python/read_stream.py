"""Reads one streamed answer with the official openai package and prints what arrived as JSON.

Usage: read_stream.py BASE_URL MESSAGE [numbered]

`numbered` asks for a stream that can be come back to, whose events have ids.
"""

import json
import sys

import openai

base_url, message, *numbered = sys.argv[1:]
client = openai.OpenAI(base_url=base_url, api_key="unused", max_retries=0, timeout=20)
seen = {"content": "", "reasoning": "", "finish": None, "ids": [], "roles": 0, "chunks": 0, "usage": None, "error": None}
try:
    stream = client.chat.completions.create(
        model="mock",
        messages=[{"role": "user", "content": message}],
        stream=True,
        stream_options={"include_usage": True, "continuous_usage_stats": True},
        seed=11,
        extra_headers={"Baton-Resume": "on"} if numbered else {},
    )
    for chunk in stream:
        seen["chunks"] += 1
        if chunk.id not in seen["ids"]:
            seen["ids"].append(chunk.id)
        if chunk.usage is not None:
            seen["usage"] = chunk.usage.model_dump(exclude_none=True)
        for choice in chunk.choices:
            seen["roles"] += choice.delta.role is not None
            seen["content"] += choice.delta.content or ""
            seen["reasoning"] += getattr(choice.delta, "reasoning", None) or ""
            seen["finish"] = choice.finish_reason or seen["finish"]
except openai.APIError as error:
    seen["error"] = {"code": error.code, "message": error.message}
print(json.dumps(seen))
