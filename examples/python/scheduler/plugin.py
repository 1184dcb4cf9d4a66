"""First come, first served: requests get their prompt computed in order of arrival, as far as a step has room.

This file says what the plugin is; `scheduler.py` is the policy. An interpreter is too slow for a busy GPU: this is for
trying out an idea, and for small machines.
"""

import json

from componentize_py_types import Err
from wit_world import exports
from wit_world.exports.lifecycle import Descriptor
from wit_world.imports import types


class Lifecycle(exports.Lifecycle):
    def describe(self) -> Descriptor:
        return Descriptor("first-come", "0.1.0", "First come, first served, in Python")

    def configure(self, settings_json: str) -> None:
        unknown = sorted(json.loads(settings_json))
        if unknown:
            message = f"settings: unknown key {unknown[0]}; there are none"
            raise Err(types.PluginError(types.Severity.DISABLE_PLUGIN, "invalid-settings", message))


class Scheduler(exports.Scheduler):
    pass
