"""A chat template: each turn under a title, and the assistant's left open.

Rendering is a pure function of the request, which is JSON with `messages`, `tools`, `documents`,
`add_generation_prompt`, `continue_final_message`, `kwargs` and `now`.
"""

import json

from componentize_py_types import Err
from wit_world import exports
from wit_world.exports import template
from wit_world.exports.lifecycle import Descriptor
from wit_world.imports import types


class Lifecycle(exports.Lifecycle):
    def describe(self) -> Descriptor:
        return Descriptor("titled-turns", "0.1.0", "Each turn under a title")

    def configure(self, settings_json: str) -> None:
        unknown = sorted(json.loads(settings_json))
        if unknown:
            message = f"settings: unknown key {unknown[0]}; there are none"
            raise Err(types.PluginError(types.Severity.DISABLE_PLUGIN, "invalid-settings", message))


class Template(exports.Template):
    def load(self, model: template.ModelInfo) -> None:
        """What the model's files say; this template needs nothing of it."""

    def render(self, request_json: str) -> template.Rendered:
        request = json.loads(request_json)
        prompt, last_turn = "", 0
        for message in request["messages"]:
            role, content = message["role"], message.get("content")
            if not isinstance(content, str):
                # The client gets a 400 with this message.
                text = f"the content of a {role} message must be text"
                raise Err(types.PluginError(types.Severity.REJECT_REQUEST, "content", text))
            prompt += f"### {role}\n{content}\n\n"
            if role in ("user", "tool"):
                last_turn = len(prompt)
        if request["add_generation_prompt"]:
            prompt += "### assistant\n"
        return template.Rendered(prompt, prompt[last_turn:], types.Channel_Content(), ["\n### "], [])
