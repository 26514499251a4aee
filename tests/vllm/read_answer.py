"""Reads streamed answers with the official openai package and prints what arrived, a line of JSON for each.

Standard input has a line for each answer: the base URL, a tab, and the request in JSON.
"""

import json
import sys

import openai

KNOWN = ("model", "messages", "stream", "stream_options", "temperature", "max_tokens")


def read(base_url, request):
    client = openai.OpenAI(base_url=base_url, api_key="unused", max_retries=0, timeout=120)
    got = {"content": "", "reasoning": "", "finish": [], "ids": [], "roles": 0, "usage": [], "error": None}
    try:
        stream = client.chat.completions.create(
            **{key: request[key] for key in KNOWN if key in request},
            extra_body={key: value for key, value in request.items() if key not in KNOWN},
        )
        for chunk in stream:
            if chunk.id not in got["ids"]:
                got["ids"].append(chunk.id)
            if chunk.usage is not None:
                got["usage"].append(chunk.usage.model_dump(exclude_unset=True))
            for choice in chunk.choices:
                got["roles"] += choice.delta.role is not None
                got["content"] += choice.delta.content or ""
                got["reasoning"] += getattr(choice.delta, "reasoning", None) or ""
                if choice.finish_reason:
                    got["finish"].append(choice.finish_reason)
    except openai.APIError as error:
        got["error"] = {"code": getattr(error, "code", None), "message": error.message}
    client.close()
    return got


for line in sys.stdin:
    base_url, request = line.split("\t", 1)
    print(json.dumps(read(base_url, json.loads(request))), flush=True)
