"""The anthropic package."""

import anthropic
import pytest

from conftest import WEATHER

TOOLS = [{"name": "get_weather", "description": WEATHER["description"], "input_schema": WEATHER["parameters"]}]


@pytest.fixture
def client(direct):
    return anthropic.Anthropic(base_url=direct.url, api_key="none", max_retries=0, timeout=60)


def ask(text, **more):
    return {"model": "m", "max_tokens": 200, "messages": [{"role": "user", "content": text}], **more}


def test_text(client):
    answer = client.messages.create(**ask("hi", system="Be brief."))
    assert (answer.content[0].text, answer.stop_reason, answer.usage.output_tokens) == ("Hello é🌶!", "end_turn", 5)
    with client.messages.stream(**ask("hi")) as stream:
        assert "".join(stream.text_stream) == "Hello é🌶!"
        assert stream.get_final_message().stop_reason == "end_turn"


def test_tools_and_thinking(client):
    for answer in (client.messages.create(**ask("The weather in Paris and Oslo?", tools=TOOLS)), streamed(client)):
        assert [block.type for block in answer.content] == ["thinking", "tool_use", "tool_use"]
        assert answer.content[0].thinking == "two cities"
        assert [block.input for block in answer.content[1:]] == [{"city": "Paris"}, {"city": "Oslo"}]
        assert answer.stop_reason == "tool_use"
    results = [{"type": "tool_result", "tool_use_id": block.id, "content": "sunny"} for block in answer.content[1:]]
    turns = ask("The weather in Paris and Oslo?", tools=TOOLS)
    turns["messages"] += [
        {"role": "assistant", "content": [block.model_dump() for block in answer.content]},
        {"role": "user", "content": results + [{"type": "text", "text": "Paris, and then?"}]},
    ]
    assert client.messages.create(**turns).content[0].text == "It is sunny."


def streamed(client):
    with client.messages.stream(**ask("The weather in Paris and Oslo?", tools=TOOLS)) as stream:
        return stream.get_final_message()


def test_count_tokens(client):
    short, long = (client.messages.count_tokens(model="m", messages=[{"role": "user", "content": text}]) for text in ("a", "abc"))
    assert long.input_tokens == short.input_tokens + 2


def test_ends(client):
    assert client.messages.create(**{**ask("hi"), "max_tokens": 2}).stop_reason == "max_tokens"
    stopped = client.messages.create(**ask("hi", stop_sequences=["lo"]))
    assert (stopped.stop_reason, stopped.stop_sequence, stopped.content[0].text) == ("stop_sequence", "lo", "Hel")


def test_cancel(client, direct):
    with client.messages.stream(**ask("Talk for long.", extra_body={"ignore_eos": True, "max_tokens": 8000})) as stream:
        for _, _ in zip(range(6), stream):
            pass
        direct.until_running(True)
    direct.until_running(False)


def test_errors(client):
    with pytest.raises(anthropic.BadRequestError) as refused:
        client.messages.create(**ask("hi", extra_body={"temperature": -1}))
    assert refused.value.body["error"]["type"] == "invalid_request_error"
    with pytest.raises(anthropic.NotFoundError):
        client.messages.create(**{**ask("hi"), "model": "other"})
    with pytest.raises(anthropic.APIStatusError) as failed:
        with client.messages.stream(**ask("Break off.")) as stream:
            stream.until_done()
    assert failed.value.body["error"]["type"] == "api_error"
