// The openai package: text, stream, tools, reasoning, errors, cancel. Arguments: base URL, a function's declaration.
import assert from "node:assert/strict";
import OpenAI from "openai";

const [url, weather] = process.argv.slice(2);
const tools = [{ type: "function", function: JSON.parse(weather) }];
const client = new OpenAI({ baseURL: `${url}/v1`, apiKey: "none", maxRetries: 0, timeout: 60_000 });
const ask = (text, more = {}) => ({ model: "m", messages: [{ role: "user", content: text }], ...more });

const plain = await client.chat.completions.create(ask("hi"));
assert.equal(plain.choices[0].message.content, "Hello é🌶!");

let text = "";
for await (const chunk of await client.chat.completions.create(ask("hi", { stream: true }))) {
  text += chunk.choices[0]?.delta.content ?? "";
}
assert.equal(text, "Hello é🌶!");

const runner = client.chat.completions.stream(ask("The weather in Paris and Oslo?", { tools }));
const { message, finish_reason } = (await runner.finalChatCompletion()).choices[0];
assert.equal(finish_reason, "tool_calls");
assert.deepEqual(message.tool_calls.map((call) => JSON.parse(call.function.arguments).city), ["Paris", "Oslo"]);

let reasoning = "";
for await (const chunk of await client.chat.completions.create(ask("Think first.", { stream: true }))) {
  reasoning += chunk.choices[0]?.delta.reasoning_content ?? "";
}
assert.equal(reasoning, "let me see");

const responses = client.responses.stream({ model: "m", input: "Think first." });
assert.equal((await responses.finalResponse()).output_text, "Forty-two.");

await assert.rejects(client.chat.completions.create(ask("hi", { temperature: -1 })), OpenAI.BadRequestError);
await assert.rejects(async () => {
  for await (const _ of await client.chat.completions.create(ask("Break off.", { stream: true })));
}, OpenAI.APIError);

const long = await client.chat.completions.create(ask("Talk for long.", { stream: true, ignore_eos: true }));
let seen = 0;
for await (const _ of long) {
  if (++seen === 3) break;
}
console.log("cancelled after", seen);
