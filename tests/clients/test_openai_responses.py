"""The openai package's other endpoints, at the server itself."""

import json

import openai
import pytest

from conftest import WEATHER

TOOL = {"type": "function", **WEATHER, "strict": False}


@pytest.fixture
def client(direct):
    return openai.OpenAI(base_url=f"{direct.url}/v1", api_key="none", max_retries=0, timeout=60)


def test_text_and_conversation(client):
    first = client.responses.create(model="m", input="hi", instructions="Be brief.")
    assert (first.output_text, first.status, first.usage.output_tokens) == ("Hello é🌶!", "completed", 5)
    second = client.responses.create(model="m", input="Say who", previous_response_id=first.id)
    assert second.output_text == "I am a script."
    assert client.responses.retrieve(second.id).output_text == "I am a script."
    client.responses.delete(second.id)
    with pytest.raises(openai.NotFoundError):
        client.responses.retrieve(second.id)


def test_stream(client):
    with client.responses.stream(model="m", input="Think first.") as stream:
        events = list(stream)
        final = stream.get_final_response()
    text = "".join(event.delta for event in events if event.type == "response.output_text.delta")
    thought = "".join(event.delta for event in events if event.type == "response.reasoning_text.delta")
    assert (text, thought, final.output_text) == ("Forty-two.", "let me see", "Forty-two.")
    assert [item.type for item in final.output] == ["reasoning", "message"]
    assert events[-1].type == "response.completed"


def test_tools(client):
    with client.responses.stream(model="m", input="The weather in Paris and Oslo?", tools=[TOOL]) as stream:
        final = stream.get_final_response()
    calls = [item for item in final.output if item.type == "function_call"]
    assert [json.loads(call.arguments) for call in calls] == [{"city": "Paris"}, {"city": "Oslo"}]
    results = [{"type": "function_call_output", "call_id": call.call_id, "output": "sunny"} for call in calls]
    turn = results + [{"role": "user", "content": "Paris, and then?"}]
    answer = client.responses.create(model="m", input=turn, previous_response_id=final.id, tools=[TOOL])
    assert answer.output_text == "It is sunny."


def test_incomplete(client):
    answer = client.responses.create(model="m", input="hi", max_output_tokens=2)
    assert (answer.status, answer.incomplete_details.reason) == ("incomplete", "max_output_tokens")


def test_cancel(client, direct):
    stream = client.responses.create(model="m", input="Talk for long.", stream=True, extra_body={"ignore_eos": True})
    for _, _ in zip(range(6), stream):
        pass
    direct.until_running(True)
    stream.close()
    direct.until_running(False)


def test_errors(client):
    with pytest.raises(openai.BadRequestError) as refused:
        client.responses.create(model="m", input="hi", max_output_tokens=0)
    assert "max_output_tokens" in str(refused.value)
    with pytest.raises(openai.NotFoundError):
        client.responses.create(model="m", input="hi", previous_response_id="resp_no")
    events = []
    with pytest.raises(openai.APIError):
        for event in client.responses.create(model="m", input="Break off.", stream=True):
            events.append(event.type)
    assert "response.completed" not in events
