"""One stream of the stage. The file has the interface's name, which is where exported resources are looked for.

`feed` is called once per engine step with that step's events and gives back events: text that may still become a marker is
held, text inside the marks goes on in the channel `reasoning`, and every other event is passed on as it came.
"""

from wit_world.exports import stage as wit
from wit_world.imports import types

OPEN, CLOSE = "[[", "]]"


class Session(wit.Session):
    def __init__(self, request: wit.Request) -> None:
        # The template may have left the reasoning open.
        self.inside = isinstance(request.starts_in, types.Channel_Reasoning)
        self.held = ""

    def feed(self, events: list[wit.Event]) -> list[wit.Event]:
        out: list[wit.Event] = []
        for event in events:
            if isinstance(event, wit.Event_Text) and isinstance(event.value.channel, types.Channel_Content):
                self.read(event.value.text, out)
            else:
                out.append(event)
        return out

    def finish(self, reason: wit.EndReason) -> list[wit.Event]:
        out: list[wit.Event] = []
        self.emit(self.held, out)
        self.held = ""
        return out

    def read(self, text: str, out: list[wit.Event]) -> None:
        text = self.held + text
        while True:
            marker = CLOSE if self.inside else OPEN
            before, found, after = text.partition(marker)
            if not found:
                break
            self.emit(before, out)
            self.inside = not self.inside
            text = after
        # The first character of a marker may be all that has come of it.
        keep = 1 if text.endswith(marker[0]) else 0
        self.emit(text[: len(text) - keep], out)
        self.held = text[len(text) - keep :]

    def emit(self, text: str, out: list[wit.Event]) -> None:
        if text:
            channel = types.Channel_Reasoning() if self.inside else types.Channel_Content()
            out.append(wit.Event_Text(wit.Text(channel, text, None)))
