"""The page at /ui in a real browser: its figures, a streamed chat, the stages step by step, the key, and that no text of
a model becomes markup and nothing is asked of anybody else."""

import hashlib
import json
import os
import shutil
import time

import pytest
from selenium import webdriver
from selenium.webdriver.chrome.service import Service
from selenium.webdriver.common.by import By
from selenium.webdriver.common.keys import Keys

from conftest import until

MARKUP = "<img src=x onerror=\"document.title='owned'\"><b>bold</b>"


class Page:
    def __init__(self, driver, url):
        self.driver, self.url = driver, url

    def open(self, part=""):
        self.driver.get("about:blank")
        self.driver.get(f"{self.url}/ui{part}")
        return self

    def all(self, selector):
        # All at once: what is looked at may be replaced at any moment.
        script = "return [...document.querySelectorAll(arguments[0])].map((one) => one.innerText)"
        return self.driver.execute_script(script, selector)

    def text(self, selector):
        return " ".join(self.all(selector))

    def one(self, selector):
        return self.driver.find_element(By.CSS_SELECTOR, selector)

    def until(self, selector, *needles):
        """Waits until the text holds all of these."""
        until(lambda: all(needle in self.text(selector) for needle in needles), f"{needles} in {selector}")
        return self.text(selector)

    def put(self, selector, text):
        self.driver.execute_script("arguments[0].value = arguments[1]", self.one(selector), text)

    def say(self, text):
        self.one("#chat-input").send_keys(text, Keys.ENTER)

    def faults(self):
        """What the console holds against the page."""
        return [entry["message"] for entry in self.driver.get_log("browser") if entry["level"] == "SEVERE"]

    def requests(self):
        messages = [json.loads(entry["message"])["message"] for entry in self.driver.get_log("performance")]
        return {m["params"]["request"]["url"] for m in messages if m["method"] == "Network.requestWillBeSent"}


@pytest.fixture(scope="module")
def driver():
    """Only a machine that is not CI may be without a browser."""
    browser, own = shutil.which("chromium"), shutil.which("chromedriver")
    if not (browser and own) and not os.environ.get("CI"):
        pytest.skip("chromium and chromedriver are missing (on Debian: `bash xtask/ci-tools.sh`)")
    options = webdriver.ChromeOptions()
    options.binary_location = browser
    for word in ["--headless=new", "--no-sandbox", "--disable-dev-shm-usage", "--window-size=1280,1000"]:
        options.add_argument(word)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
    started = webdriver.Chrome(options=options, service=Service(own))
    yield started
    started.quit()


@pytest.fixture
def page(driver, direct):
    page = Page(driver, direct.url)
    yield page
    assert page.faults() == []
    foreign = [url for url in page.requests() if not url.startswith((direct.url, "data:", "about:"))]
    assert foreign == []


def test_figures(page):
    page.open()
    page.until("#models", "think", "hermes", "jinja", "8,192")
    page.until("#plugins", "hermes", "stall-free", "m/output", "m/template", "main/scheduler", "healthy")
    assert page.until("#status", "ready") == "ready"
    page.until("#engines", "scheduler stall-free active", "KV pool", "Time to first token", "Between tokens")
    before = figure(page, "Generated tokens a second")
    page.open("#chat").say("Think first.")
    page.until(".answer .note", "stop")
    page.driver.execute_script("location.hash = 'overview'")
    until(lambda: figure(page, "Generated tokens a second") > before, "the count of tokens grows")
    # A time instead of a dash, in whatever unit the machine's speed asks for.
    until(lambda: "–" not in box(page, "Time to first token"), "percentiles of the first token")


def box(page, label):
    return next((text for text in page.all(".figure") if text.startswith(label)), "–")


def figure(page, label):
    """The total below a rate."""
    text = box(page, label)
    return -1 if text == "–" else int(text.split("\n")[-1].split(" ")[0].replace(",", ""))


def test_chat(page):
    page.open("#chat").until("#chat-model", "m")
    page.say("Think first.")
    page.until(".answer .note", "stop", "first token after", "tokens")
    assert (page.text(".answer .reasoning"), page.text(".answer .content")) == ("let me see", "Forty-two.")
    page.put("#chat-tools", json.dumps([{"type": "function", "function": {"name": "get_weather"}}]))
    page.say("The weather in Paris and Oslo?")
    page.until(".answer:last-child .note", "tool_calls")
    calls = page.all(".answer:last-child .call")
    assert calls == ['get_weather {"city": "Paris"}', 'get_weather {"city": "Oslo"}']


def test_chat_streams_and_stops(page):
    page.open("#chat").until("#chat-model", "m")
    page.put("#chat-tokens", "4000")
    page.driver.execute_script(IGNORE_END)
    page.say("Talk for long.")
    page.until(".answer .content", "word after word")
    length = len(page.text(".answer .content"))
    until(lambda: len(page.text(".answer .content")) > length, "more text arrives while the answer runs")
    page.one("#chat-stop").click()
    page.until(".answer .note", "stopped")


# The script's answer is short; it is repeated for who ignores its end.
IGNORE_END = """
const real = window.fetch;
window.fetch = (path, options) => {
  if (options && options.body) options.body = JSON.stringify({ ...JSON.parse(options.body), ignore_eos: true });
  return real(path, options);
};
"""


def test_errors_are_shown(page):
    page.open("#chat").until("#chat-model", "m")
    page.say("Break off.")
    page.until(".answer .note", "then: error")
    assert page.text(".answer .content") == "partial"
    page.put("#chat-tools", "{")
    page.say("hi")
    page.until("#fault", "JSON")


def test_stages(page):
    page.open("#stages").until("#stages-model", "m")
    page.one("#stages-run").click()
    page.until("#stages-table thead", "Token", "after think", "after hermes", "The client sees")
    page.until("#stages-message", "One moment.", "A tool knows.", 'get_weather {"city": "Oslo"}')
    rows = page.all("#stages-table tbody tr")
    assert rows[-1].split()[1] == "end"
    stages = page.all("#stages-table tbody td:nth-child(4)")
    assert "call 0: get_weather" in " ".join(stages) and "end of call 0" in " ".join(stages)
    # After stage one the call is still text.
    assert "call 0" not in page.text("#stages-table tbody td:nth-child(3)")
    while "Oslo" in page.text("#stages-message"):
        page.one("#stages-back").click()
    assert "One moment." in page.text("#stages-message")
    assert f"of {len(rows)}" in page.text("#stages-at")


def test_texts_are_no_markup(page):
    page.open("#chat").until("#chat-model", "m")
    page.say("Say markup")
    page.until(".answer .note", "stop")
    assert page.text(".answer .content") == MARKUP
    page.driver.execute_script("location.hash = 'stages'")
    page.put("#stages-text", MARKUP)
    page.one("#stages-run").click()
    page.until("#stages-message", MARKUP)
    time.sleep(0.2)
    assert page.driver.title == "Tokenloom"
    assert page.driver.find_elements(By.CSS_SELECTOR, "img, b b, .content b") == []


def test_key(driver, serve, tmp_path):
    digest = hashlib.sha256(b"secret").hexdigest()
    (tmp_path / "keys.toml").write_text(f'[[key]]\nsha256 = "{digest}"\ntenant = "t"\n')
    page = Page(driver, serve("keyed", "--api-key-file", tmp_path / "keys.toml")).open()
    page.until("#fault", "needs an API key")
    page.one("#key").send_keys("wrong", Keys.ENTER)
    page.until("#fault", "not known here")
    page.one("#key").send_keys("secret", Keys.ENTER)
    page.until("#plugins", "hermes")
    until(lambda: page.text("#fault") == "", "no fault is shown any more")
    page.driver.execute_script("location.hash = 'chat'")
    page.say("hi")
    page.until(".answer .content", "Hello é🌶!")
    # A refused request is in the console, and nothing else is.
    assert [fault for fault in page.faults() if "401" not in fault] == []
