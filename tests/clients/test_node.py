"""Clients of Node: the openai package and the Vercel AI SDK. Their assertions are in `node/`."""


def test_openai(node, direct):
    assert "cancelled" in node("openai.mjs")
    direct.until_running(False)


def test_ai_sdk(node, direct):
    assert "cancelled" in node("ai-sdk.mjs")
    direct.until_running(False)


def test_anthropic(node):
    node("anthropic.mjs")
