"""LangChain's chat model for OpenAI."""

import openai
import pytest
from langchain_openai import ChatOpenAI

from conftest import WEATHER


@pytest.fixture
def model(direct):
    return ChatOpenAI(model="m", base_url=f"{direct.url}/v1", api_key="none", max_retries=0, timeout=60, stream_usage=True)


def test_text(model):
    answer = model.invoke("hi")
    assert (answer.content, answer.usage_metadata["output_tokens"]) == ("Hello é🌶!", 5)
    chunks = list(model.stream("hi"))
    assert "".join(chunk.content for chunk in chunks) == "Hello é🌶!"
    assert sum((chunk.usage_metadata or {}).get("output_tokens", 0) for chunk in chunks) == 5


def test_tools(model):
    bound = model.bind_tools([{"type": "function", "function": WEATHER}])
    question = "The weather in Paris and Oslo?"
    plain = bound.invoke(question).tool_calls
    whole = None
    for chunk in bound.stream(question):
        whole = chunk if whole is None else whole + chunk
    for calls in (plain, whole.tool_calls):
        assert [(call["name"], call["args"]) for call in calls] == [("get_weather", {"city": city}) for city in ("Paris", "Oslo")]


def test_responses(direct):
    model = ChatOpenAI(model="m", base_url=f"{direct.url}/v1", api_key="none", max_retries=0, timeout=60, use_responses_api=True)
    assert model.invoke("hi").text == "Hello é🌶!"
    assert "".join(chunk.text for chunk in model.stream("hi")) == "Hello é🌶!"


def test_cancel(model, direct):
    stream = model.bind(extra_body={"ignore_eos": True}).stream("Talk for long.")
    for _, _ in zip(range(3), stream):
        pass
    direct.until_running(True)
    stream.close()
    direct.until_running(False)


def test_errors(model):
    with pytest.raises(openai.BadRequestError):
        model.bind(temperature=-1).invoke("hi")
    with pytest.raises(openai.APIError):
        list(model.stream("Break off."))
