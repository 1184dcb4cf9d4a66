"""LiteLLM, with its provider for servers of this kind."""

import litellm
import pytest

from conftest import WEATHER

TOOLS = [{"type": "function", "function": WEATHER}]


@pytest.fixture
def ask(direct):
    def ask(text, **more):
        messages = [{"role": "user", "content": text}]
        base = f"{direct.url}/v1"
        return litellm.completion(model="hosted_vllm/m", api_base=base, api_key="none", messages=messages, max_retries=0, **more)

    return ask


def rebuilt(stream):
    return litellm.stream_chunk_builder(list(stream)).choices[0]


def test_text(ask):
    assert ask("hi").choices[0].message.content == "Hello é🌶!"
    assert rebuilt(ask("hi", stream=True)).message.content == "Hello é🌶!"


@pytest.mark.parametrize("stream", [False, True])
def test_tools_and_reasoning(ask, stream):
    answer = ask("The weather in Paris and Oslo?", tools=TOOLS, stream=stream)
    choice = rebuilt(answer) if stream else answer.choices[0]
    assert choice.finish_reason == "tool_calls"
    assert choice.message.reasoning_content == "two cities"
    assert [call.function.arguments.replace(" ", "") for call in choice.message.tool_calls] == ['{"city":"Paris"}', '{"city":"Oslo"}']


def test_cancel(ask, direct):
    stream = ask("Talk for long.", stream=True, extra_body={"ignore_eos": True})
    for _, _ in zip(range(3), stream):
        pass
    direct.until_running(True)
    stream.completion_stream.close()
    direct.until_running(False)


def test_errors(ask):
    with pytest.raises(litellm.BadRequestError) as refused:
        ask("hi", temperature=-1)
    assert "temperature" in str(refused.value)
    with pytest.raises(litellm.exceptions.MidStreamFallbackError) as failed:
        list(ask("Break off.", stream=True))
    assert "then: error" in str(failed.value)
