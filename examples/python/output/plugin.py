"""A reasoning stage for an invented format: what a model writes between `[[` and `]]` is its reasoning.

This file says what the stage is; `stage.py` is what it does with a stream.
"""

import json

from componentize_py_types import Err
from wit_world import exports
from wit_world.exports import stage as wit
from wit_world.exports.lifecycle import Descriptor
from wit_world.imports import types

from stage import CLOSE, OPEN

class Lifecycle(exports.Lifecycle):
    def describe(self) -> Descriptor:
        return Descriptor("margin-notes", "0.1.0", "Text between [[ and ]] is reasoning")

    def configure(self, settings_json: str) -> None:
        unknown = sorted(json.loads(settings_json))
        if unknown:
            message = f"settings: unknown key {unknown[0]}; there are none"
            raise Err(types.PluginError(types.Severity.DISABLE_PLUGIN, "invalid-settings", message))


class Stage(exports.Stage):
    def requires(self) -> wit.Requirements:
        # The host follows the span itself, for `reasoning_tokens` and thinking budgets.
        span = wit.ReasoningSpan(open=OPEN, close=CLOSE, forced_close=CLOSE)
        return wit.Requirements(markers=[OPEN, CLOSE], reasoning=[span], tool_schemas=False, stop=[], ext=[])

    def constrain(self, request: wit.Request):
        return None
