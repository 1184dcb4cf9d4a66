// The Anthropic package: stream, tools, thinking, errors.
import assert from "node:assert/strict";
import Anthropic from "@anthropic-ai/sdk";

const [url, weather] = process.argv.slice(2);
const { name, description, parameters } = JSON.parse(weather);
const tools = [{ name, description, input_schema: parameters }];
const client = new Anthropic({ baseURL: url, apiKey: "none", maxRetries: 0, timeout: 60_000 });
const ask = (text, more = {}) => ({ model: "m", max_tokens: 200, messages: [{ role: "user", content: text }], ...more });

assert.equal(await client.messages.stream(ask("hi")).finalText(), "Hello é🌶!");
const answer = await client.messages.stream(ask("The weather in Paris and Oslo?", { tools })).finalMessage();
assert.deepEqual(answer.content.map((block) => block.type), ["thinking", "tool_use", "tool_use"]);
assert.deepEqual(answer.content.slice(1).map((block) => block.input.city), ["Paris", "Oslo"]);
await assert.rejects(client.messages.create(ask("hi", { temperature: -1 })), Anthropic.BadRequestError);
await assert.rejects(client.messages.stream(ask("Break off.")).finalMessage(), Anthropic.APIError);
