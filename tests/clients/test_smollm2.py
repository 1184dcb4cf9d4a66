"""Every client package with a real model, where nothing is scripted: the answers are whatever SmolLM2 says, so each is
compared with another of its own forms."""

import json
import math

import anthropic
import litellm
import openai
import pytest
from langchain_openai import ChatOpenAI

from conftest import WEATHER

QUESTION = [{"role": "user", "content": "Name three colours."}]
TOOLS = [{"type": "function", "function": WEATHER}]
GREEDY = {"model": "m", "temperature": 0, "max_tokens": 12}
SCHEMA = {
    "type": "object",
    "properties": {"colour": {"enum": ["red", "green"]}, "count": {"type": "integer", "minimum": 1, "maximum": 9}},
    "required": ["colour", "count"],
    "additionalProperties": False,
}


@pytest.fixture(scope="session")
def url(smollm2):
    return smollm2.url


@pytest.fixture(scope="session")
def client(url):
    return openai.OpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0, timeout=120)


@pytest.fixture(scope="session")
def said(client):
    """What all clients must hear."""
    return client.chat.completions.create(messages=QUESTION, **GREEDY).choices[0].message.content


def test_openai(client, said):
    stream = client.chat.completions.create(messages=QUESTION, stream=True, **GREEDY)
    assert said and "".join(chunk.choices[0].delta.content or "" for chunk in stream) == said
    answer = client.responses.create(model="m", temperature=0, max_output_tokens=16, input="Name three colours.")
    assert answer.output_text.startswith(said) and answer.usage.output_tokens == 16


def test_other_packages(url, said):
    chat = ChatOpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0, timeout=120, **GREEDY)
    assert chat.invoke("Name three colours.").content == said
    assert "".join(chunk.content for chunk in chat.stream("Name three colours.")) == said
    more = {"api_base": f"{url}/v1", "api_key": "none", "max_retries": 0, "messages": QUESTION, "temperature": 0}
    answer = litellm.completion(model="hosted_vllm/m", max_tokens=12, **more)
    assert answer.choices[0].message.content == said
    messages = anthropic.Anthropic(base_url=url, api_key="none", max_retries=0, timeout=120).messages
    # The package has no parameter for the temperature.
    greedy = {"model": "m", "max_tokens": 12, "messages": QUESTION, "extra_body": {"temperature": 0}}
    answer = messages.create(**greedy)
    assert (answer.content[0].text, answer.usage.output_tokens, answer.stop_reason) == (said, 12, "max_tokens")
    with messages.stream(**greedy) as stream:
        assert "".join(stream.text_stream) == said


@pytest.mark.parametrize("seed", range(3))
def test_a_schema_holds(client, seed):
    form = {"type": "json_schema", "json_schema": {"name": "answer", "schema": SCHEMA, "strict": True}}
    answer = client.chat.completions.create(
        model="m", messages=QUESTION, temperature=1.5, seed=seed, max_tokens=200, response_format=form
    )
    value = json.loads(answer.choices[0].message.content)
    assert value["colour"] in ("red", "green") and 1 <= value["count"] <= 9 and len(value) == 2


def test_a_required_call_comes(client):
    stream = client.chat.completions.create(
        model="m", messages=QUESTION, temperature=0.7, seed=1, max_tokens=300, tools=TOOLS, tool_choice="required", stream=True
    )
    name, arguments, reason = "", "", None
    for chunk in stream:
        choice = chunk.choices[0]
        for call in choice.delta.tool_calls or []:
            if call.index == 0:
                name += call.function.name or ""
                arguments += call.function.arguments or ""
        reason = choice.finish_reason or reason
    assert name == "get_weather" and reason in ("tool_calls", "length")
    assert reason == "length" or isinstance(json.loads(arguments)["city"], str)


def test_a_prompt_has_logprobs(client):
    """As evaluation harnesses ask: the text again, with a logprob for each of its tokens but the first."""
    text = "The sky is blue and the grass is green."
    ask = {"model": "m", "prompt": text, "temperature": 0, "logprobs": 2}
    echo = client.completions.create(echo=True, max_tokens=1, **ask).choices[0]
    places = echo.logprobs
    assert echo.text.startswith(text) and places.token_logprobs[0] is None
    assert all(-50 < logprob < 0 for logprob in places.token_logprobs[1:])
    assert "".join(places.tokens) == echo.text
    for token, offset in zip(places.tokens, places.text_offset):
        assert echo.text[offset : offset + len(token)] == token
    only = client.completions.create(echo=True, max_tokens=0, **ask)
    assert only.choices[0].text == text and only.usage.completion_tokens == 0
    count = only.usage.prompt_tokens
    assert only.choices[0].logprobs.token_logprobs == places.token_logprobs[:count]
    chat = client.chat.completions.create(messages=QUESTION, extra_body={"prompt_logprobs": 3}, **GREEDY)
    places = chat.model_extra["prompt_logprobs"]
    assert len(places) == chat.usage.prompt_tokens and places[0] is None
    for place in places[1:]:
        ranks = [entry["rank"] for entry in place.values()]
        assert {1, 2, 3} <= set(ranks) and sum(math.exp(entry["logprob"]) for entry in place.values()) < 1.001


def test_cancel(client, smollm2):
    stream = client.chat.completions.create(
        model="m", messages=QUESTION, max_tokens=1500, stream=True, extra_body={"ignore_eos": True}
    )
    next(iter(stream))
    smollm2.until_running(True)
    stream.close()
    smollm2.until_running(False)


def test_embeddings(client):
    rows = client.embeddings.create(model="m", input=["a cat", "a kitten", "tax law"]).data
    cat, kitten, law = (row.embedding for row in rows)
    dot = lambda a, b: sum(x * y for x, y in zip(a, b))
    assert dot(cat, cat) == pytest.approx(1, abs=1e-3)
    assert dot(cat, kitten) > dot(cat, law)
