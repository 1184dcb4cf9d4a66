"""The openai package, at the server and through routers with two servers behind them."""

import json

import openai
import pytest

from conftest import WEATHER

TOOLS = [{"type": "function", "function": WEATHER}]


@pytest.fixture
def client(front):
    return openai.OpenAI(base_url=f"{front.url}/v1", api_key="none", max_retries=0, timeout=60)


def ask(client, text, **more):
    return client.chat.completions.create(model="m", messages=[{"role": "user", "content": text}], **more)


def folded(stream):
    """Text, reasoning, calls and the last finish reason, put together as a client does."""
    text, reasoning, calls, reason = "", "", {}, None
    for chunk in stream:
        for choice in chunk.choices:
            delta = choice.delta
            text += delta.content or ""
            extra = delta.model_extra or {}
            reasoning += extra.get("reasoning") or extra.get("reasoning_content") or ""
            for part in delta.tool_calls or []:
                call = calls.setdefault(part.index, {"id": part.id, "name": part.function.name, "arguments": ""})
                call["arguments"] += part.function.arguments or ""
            reason = choice.finish_reason or reason
    return text, reasoning, [calls[index] for index in sorted(calls)], reason


def reasoning_of(message):
    extra = message.model_extra or {}
    return extra.get("reasoning") or extra.get("reasoning_content")


def test_text(client):
    answer = ask(client, "hi", logprobs=True, top_logprobs=1)
    choice = answer.choices[0]
    assert (choice.message.content, choice.finish_reason) == ("Hello é🌶!", "stop")
    assert [entry.logprob for entry in choice.logprobs.content] == pytest.approx([-0.1, -0.2, -0.3, -0.4, -0.5])
    assert answer.usage.completion_tokens == 5
    stream = ask(client, "hi", stream=True)
    assert folded(stream)[::3] == ("Hello é🌶!", "stop")


def test_usage_comes_last(client):
    chunks = list(ask(client, "hi", stream=True, stream_options={"include_usage": True}))
    assert [chunk.usage for chunk in chunks[:-1]] == [None] * (len(chunks) - 1)
    assert chunks[-1].choices == [] and chunks[-1].usage.completion_tokens == 5


def test_choices(client):
    answer = ask(client, "hi", n=2)
    assert [choice.index for choice in answer.choices] == [0, 1]
    assert answer.usage.completion_tokens == 10


@pytest.mark.parametrize("stream", [False, True])
def test_tools(client, stream):
    answer = ask(client, "The weather in Paris and Oslo?", tools=TOOLS, stream=stream)
    if stream:
        _, reasoning, calls, reason = folded(answer)
    else:
        message, reason = answer.choices[0].message, answer.choices[0].finish_reason
        reasoning = reasoning_of(message)
        functions = [(call.id, call.function) for call in message.tool_calls]
        calls = [{"id": id, "name": f.name, "arguments": f.arguments} for id, f in functions]
    assert (reason, reasoning) == ("tool_calls", "two cities")
    assert [call["name"] for call in calls] == ["get_weather"] * 2
    assert [json.loads(call["arguments"]) for call in calls] == [{"city": "Paris"}, {"city": "Oslo"}]
    assert len({call["id"] for call in calls}) == 2


def test_a_turn_after_a_call(client):
    call = ask(client, "The weather in Paris?", tools=TOOLS).choices[0].message
    messages = [
        {"role": "user", "content": "The weather in Paris?"},
        call.model_dump(exclude_none=True),
        {"role": "tool", "tool_call_id": call.tool_calls[0].id, "content": "sunny"},
        {"role": "user", "content": "Paris, and then?"},
    ]
    answer = client.chat.completions.create(model="m", messages=messages, tools=TOOLS)
    assert answer.choices[0].message.content == "It is sunny."


@pytest.mark.parametrize("stream", [False, True])
def test_reasoning(client, stream):
    answer = ask(client, "Think first.", stream=stream)
    if stream:
        text, reasoning, _, _ = folded(answer)
    else:
        text, reasoning = answer.choices[0].message.content, reasoning_of(answer.choices[0].message)
    assert (text, reasoning) == ("Forty-two.", "let me see")


def test_cancel(client, front):
    stream = ask(client, "Talk for long.", stream=True, extra_body={"ignore_eos": True})
    for _, _ in zip(range(3), stream):
        pass
    front.until_running(True)
    stream.close()
    front.until_running(False)


def test_errors(client):
    with pytest.raises(openai.BadRequestError) as refused:
        ask(client, "hi", temperature=-1)
    assert "temperature" in str(refused.value)
    with pytest.raises(openai.BadRequestError) as long:
        ask(client, "hi", max_tokens=100_000)
    assert long.value.body["code"] == "context_length_exceeded"


def test_an_unknown_model(client):
    with pytest.raises(openai.APIStatusError) as refused:
        client.chat.completions.create(model="other", messages=[{"role": "user", "content": "hi"}])
    assert refused.value.status_code in (404, 503)


def test_a_failure_in_mid_stream(client):
    with pytest.raises(openai.APIError) as failed:
        folded(ask(client, "Break off.", stream=True))
    assert "then: error" in str(failed.value)


def test_completions(client):
    answer = client.completions.create(model="m", prompt=["Say who", "hi"], max_tokens=20)
    assert [choice.text for choice in answer.choices] == ["I am a script.", "Hello é🌶!"]
