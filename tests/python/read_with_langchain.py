"""Reads one streamed answer with langchain-openai and prints what arrived as JSON. The package does not show reasoning.

Usage: read_with_langchain.py BASE_URL MESSAGE [numbered]
"""

import json
import sys

from langchain_openai import ChatOpenAI

base_url, message, *numbered = sys.argv[1:]
model = ChatOpenAI(
    model="mock",
    base_url=base_url,
    api_key="unused",
    max_retries=0,
    timeout=20,
    seed=11,
    stream_usage=True,
    default_headers={"Baton-Resume": "on"} if numbered else {},
)
whole = None
for chunk in model.stream(message):
    whole = chunk if whole is None else whole + chunk
seen = {
    "content": whole.text,
    "finish": whole.response_metadata.get("finish_reason"),
    "usage": whole.usage_metadata,
}
print(json.dumps(seen))
