// The Vercel AI SDK with its provider for compatible servers, and with its own for OpenAI's Responses.
import assert from "node:assert/strict";
import { createOpenAI } from "@ai-sdk/openai";
import { createOpenAICompatible } from "@ai-sdk/openai-compatible";
import { APICallError, generateText, jsonSchema, streamText, tool } from "ai";

const [url, weather] = process.argv.slice(2);
const { description, parameters } = JSON.parse(weather);
const model = createOpenAICompatible({ name: "tokenloom", baseURL: `${url}/v1`, apiKey: "none" })("m");
const tools = { get_weather: tool({ description, inputSchema: jsonSchema(parameters) }) };
const ask = (prompt, more = {}) => ({ model, prompt, maxRetries: 0, ...more });

assert.equal((await generateText(ask("hi"))).text, "Hello é🌶!");
assert.equal(await streamText(ask("hi")).text, "Hello é🌶!");

for (const answer of [await generateText(ask("The weather in Paris and Oslo?", { tools })), streamText(ask("The weather in Paris and Oslo?", { tools }))]) {
  const calls = await answer.toolCalls;
  assert.deepEqual(calls.map((call) => [call.toolName, call.input.city]), [["get_weather", "Paris"], ["get_weather", "Oslo"]]);
  assert.equal(await answer.reasoningText, "two cities");
  assert.equal(await answer.finishReason, "tool-calls");
}

const responses = createOpenAI({ baseURL: `${url}/v1`, apiKey: "none" }).responses("m");
const streamed = streamText({ ...ask("Think first."), model: responses });
assert.equal(await streamed.text, "Forty-two.");

await assert.rejects(generateText(ask("hi", { temperature: -1 })), (error) => APICallError.isInstance(error) && error.statusCode === 400);

let failure;
for await (const _ of streamText(ask("Break off.", { onError: ({ error }) => (failure = error) })).fullStream);
assert.ok(failure, "a failure in mid-stream is an error");

const stop = new AbortController();
let seen = 0;
const options = { abortSignal: stop.signal, providerOptions: { tokenloom: { ignore_eos: true } } };
for await (const _ of streamText(ask("Talk for long.", options)).textStream) {
  if (++seen === 3) stop.abort();
}
console.log("cancelled after", seen);
