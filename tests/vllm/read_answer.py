"""Reads one streamed answer with the official openai package and prints what arrived as JSON.

Usage: read_answer.py BASE_URL REQUEST, the latter in JSON.
"""

import json
import sys

import openai

base_url, request = sys.argv[1], json.loads(sys.argv[2])
known = ("model", "messages", "stream", "stream_options", "temperature", "max_tokens")
client = openai.OpenAI(base_url=base_url, api_key="unused", max_retries=0, timeout=120)
read = {"content": "", "reasoning": "", "finish": [], "ids": [], "roles": 0, "usage": [], "error": None}
try:
    stream = client.chat.completions.create(
        **{key: request[key] for key in known if key in request},
        extra_body={key: value for key, value in request.items() if key not in known},
    )
    for chunk in stream:
        if chunk.id not in read["ids"]:
            read["ids"].append(chunk.id)
        if chunk.usage is not None:
            read["usage"].append(chunk.usage.model_dump(exclude_unset=True))
        for choice in chunk.choices:
            read["roles"] += choice.delta.role is not None
            read["content"] += choice.delta.content or ""
            read["reasoning"] += getattr(choice.delta, "reasoning", None) or ""
            if choice.finish_reason:
                read["finish"].append(choice.finish_reason)
except openai.APIError as error:
    read["error"] = {"code": error.code, "message": error.message}
print(json.dumps(read))
