// The page of a running server: what its public routes say, shown. Nothing is fetched from anywhere else, and no text
// of a model or a plugin is ever read as markup: elements are made one by one, and texts are set as texts.
'use strict';

const POLL_MS = 1000;
// The window of rates and percentiles, in samples.
const SAMPLES_MAX = 61;
// A page with more rows is of no use.
const ROWS_MAX = 2000;
const KEY = 'tokenloom-key';

const $ = (id) => document.getElementById(id);

function el(tag, attributes, ...children) {
  const made = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes || {})) {
    if (value !== undefined && value !== null) made.setAttribute(name, value);
  }
  made.append(...children.filter((child) => child !== null && child !== undefined).map((child) => child instanceof Node ? child : String(child)));
  return made;
}

// ---- the server's answers

class Refused extends Error {}

async function call(path, options = {}) {
  const headers = { ...(options.headers || {}) };
  const key = sessionStorage.getItem(KEY);
  if (key) headers.authorization = `Bearer ${key}`;
  if (options.body) headers['content-type'] = 'application/json';
  const answer = await fetch(path, { ...options, headers });
  if (answer.status === 401) {
    $('key-form').hidden = false;
    throw new Refused(key ? 'The API key is not known here.' : 'This server needs an API key.');
  }
  return answer;
}

async function json(path, body, signal) {
  const options = body ? { method: 'POST', body: JSON.stringify(body), signal } : { signal };
  const answer = await call(path, options);
  const value = await answer.json();
  if (!answer.ok && path !== '/ready') throw new Error(value.error ? value.error.message : `${path}: ${answer.status}`);
  return value;
}

function fault(error) {
  $('fault').textContent = error ? error.message || String(error) : '';
  $('fault').hidden = !error;
}

// ---- metrics

// Samples of the text format, by name; labels as an object.
function parseMetrics(text) {
  const byName = new Map();
  for (const line of text.split('\n')) {
    const found = /^([A-Za-z_:][\w:]*)(?:\{(.*)\})? (\S+)/.exec(line);
    if (!found) continue;
    const labels = {};
    for (const [, name, value] of (found[2] || '').matchAll(/(\w+)="((?:[^"\\]|\\.)*)"/g)) labels[name] = value;
    if (!byName.has(found[1])) byName.set(found[1], []);
    byName.get(found[1]).push({ labels, value: Number(found[3]) });
  }
  return byName;
}

function valueOf(metrics, name, engine) {
  const row = (metrics.get(name) || []).find(({ labels }) => labels.model_name === engine);
  return row ? row.value : 0;
}

function buckets(metrics, name, engine) {
  const rows = (metrics.get(`${name}_bucket`) || []).filter(({ labels }) => labels.model_name === engine);
  return rows.map(({ labels, value }) => [labels.le === '+Inf' ? Infinity : Number(labels.le), value]);
}

// A percentile of what was observed between two samples, read from the buckets; null: nothing was.
function percentile(now, before, share) {
  const earlier = new Map(before);
  const counts = now.map(([le, count]) => [le, count - (earlier.get(le) || 0)]);
  const total = counts.length ? counts[counts.length - 1][1] : 0;
  if (!total) return null;
  let [low, below] = [0, 0];
  for (const [le, count] of counts) {
    if (count >= share * total) {
      return le === Infinity ? low : low + (le - low) * (share * total - below) / Math.max(count - below, 1);
    }
    [low, below] = [le, count];
  }
  return low;
}

const samples = [];

// ---- numbers for people

function time(seconds) {
  if (seconds === null) return '–';
  if (seconds < 1e-3) return `${(seconds * 1e6).toFixed(seconds < 1e-4 ? 1 : 0)} µs`;
  if (seconds < 1) return `${(seconds * 1e3).toFixed(seconds < 0.01 ? 2 : 0)} ms`;
  return `${seconds.toFixed(2)} s`;
}

const whole = (number) => Math.round(number).toLocaleString('en');
const rate = (number) => number < 100 ? number.toFixed(1) : whole(number);
const kib = (bytes) => bytes < 1 << 20 ? `${whole(bytes / 1024)} KiB` : `${(bytes / (1 << 20)).toFixed(1)} MiB`;

// ---- overview

async function poll() {
  try {
    const [ready, text] = await Promise.all([json('/ready'), call('/metrics').then((answer) => answer.ok ? answer.text() : '')]);
    samples.push({ at: performance.now() / 1000, metrics: parseMetrics(text) });
    if (samples.length > SAMPLES_MAX) samples.shift();
    showStatus(ready);
    showEngines(ready.models || []);
    const [models, plugins] = await Promise.all([json('/v1/models'), json('/plugins')]);
    showModels(models.data, ready.models || [], plugins);
    showPlugins(plugins);
    fault(null);
  } catch (error) {
    fault(error instanceof TypeError ? new Error('The server does not answer.') : error);
  }
}

const COLOURS = { ready: 'good', degraded: 'warn', healthy: 'good', failing: 'bad', active: 'good', live: 'good' };
const colour = (word) => COLOURS[word] || 'bad';

function showStatus(ready) {
  $('status').textContent = ready.status;
  $('status').className = `badge ${colour(ready.status)}`;
  $('reasons').replaceChildren(...[...(ready.reasons || []), ...(ready.degraded || [])].map((why) => el('li', {}, why)));
}

function showEngines(models) {
  const byEngine = new Map();
  for (const model of models) {
    if (!byEngine.has(model.engine)) byEngine.set(model.engine, { ...model, names: [] });
    byEngine.get(model.engine).names.push(model.model);
  }
  $('engines').replaceChildren(...[...byEngine].map(([name, pulse]) => engineCard(name, pulse)));
}

function engineCard(name, pulse) {
  const { scheduler } = pulse;
  const head = el('h3', {}, name, el('span', { class: 'soft' }, ` serves ${pulse.names.join(', ')} · scheduler `),
    scheduler.name, el('span', { class: colour(scheduler.state === 'native' ? 'ready' : scheduler.state) }, ` ${scheduler.state}`),
    el('span', { class: 'soft' }, `, ${scheduler.strikes} strikes, ${whole(fallbacks(name))} fallbacks`));
  return el('article', { class: 'engine', 'data-engine': name }, head, el('div', { class: 'figures' },
    speed('Generated tokens a second', name, 'vllm:generation_tokens_total'),
    speed('Prompt tokens a second', name, 'vllm:prompt_tokens_total'),
    percentiles('Time to first token', name, 'vllm:time_to_first_token_seconds'),
    percentiles('Between tokens', name, 'vllm:inter_token_latency_seconds'),
    percentiles('A scheduler call', name, 'tokenloom_policy_seconds'),
    figure('Requests running', whole(pulse.running), el('span', { class: 'label' }, `${whole(pulse.waiting)} waiting; ${whole(pulse.steps)} steps so far`)),
    pool(pulse.pages)));
}

function fallbacks(engine) {
  const rows = (samples[samples.length - 1].metrics.get('tokenloom_policy_fallbacks_total') || []);
  return rows.filter(({ labels }) => labels.model_name === engine).reduce((sum, row) => sum + row.value, 0);
}

function figure(label, value, ...more) {
  return el('div', { class: 'figure' }, el('span', { class: 'label' }, label), el('b', {}, value), ...more);
}

// The rate over the last five seconds, and a line of the window.
function speed(label, engine, metric) {
  const total = (sample) => valueOf(sample.metrics, metric, engine);
  const between = (from, to) => to.at > from.at ? Math.max(0, (total(to) - total(from)) / (to.at - from.at)) : 0;
  const last = samples[samples.length - 1];
  const rates = samples.slice(1).map((sample, at) => between(samples[at], sample));
  return figure(label, rate(between(samples[Math.max(0, samples.length - 6)], last)), line(rates),
    el('span', { class: 'label' }, `${whole(total(last))} in all`));
}

function line(values) {
  const svg = document.createElementNS('http://www.w3.org/2000/svg', 'svg');
  svg.setAttribute('viewBox', '0 0 120 28');
  svg.setAttribute('preserveAspectRatio', 'none');
  const top = Math.max(...values, 1e-9);
  const point = (value, at) => `${(120 - 2 * (values.length - 1 - at)).toFixed(1)},${(26 - 24 * value / top).toFixed(1)}`;
  const path = document.createElementNS('http://www.w3.org/2000/svg', 'polyline');
  path.setAttribute('points', values.map(point).join(' '));
  path.setAttribute('vector-effect', 'non-scaling-stroke');
  svg.append(path);
  return svg;
}

function percentiles(label, engine, metric) {
  const now = buckets(samples[samples.length - 1].metrics, metric, engine);
  const recent = buckets(samples[0].metrics, metric, engine);
  const quiet = percentile(now, recent, 0.5) === null;
  const before = quiet ? [] : recent;
  const [p50, p95, p99] = [0.5, 0.95, 0.99].map((share) => percentile(now, before, share));
  const note = quiet ? 'since the start' : 'in the last minute';
  return figure(label, time(p50), el('span', { class: 'label' }, `median; p95 ${time(p95)}, p99 ${time(p99)}, ${note}`));
}

function pool(pages) {
  const share = (count) => `width: ${(100 * count / Math.max(pages.total, 1)).toFixed(1)}%`;
  const used = el('i');
  const cached = el('i', { class: 'cached' });
  used.style.cssText = share(pages.used);
  cached.style.cssText = share(pages.cached);
  const label = `in use of ${whole(pages.total)}, ${whole(pages.cached)} more cached`;
  return figure('KV pool', `${whole(pages.used)} pages`, el('div', { class: 'bar' }, used, cached), el('span', { class: 'label' }, label));
}

const chips = (chain) => chain.length ? chain.map(({ name }) => el('span', { class: 'chip' }, name)) : ['none'];

function showModels(models, pulses, plugins) {
  const chain = (target, kind) => (plugins.places.find((place) => place.target === target && place.kind === kind) || { chain: [] }).chain;
  $('models').tBodies[0].replaceChildren(...models.map((model) => {
    const pulse = pulses.find((one) => one.model === model.id);
    return el('tr', {}, el('td', {}, model.id), el('td', {}, pulse ? pulse.engine : ''),
      el('td', { class: 'number' }, whole(model.max_model_len)),
      el('td', {}, ...chips(chain(model.id, 'template'))), el('td', {}, ...chips(chain(model.id, 'output'))));
  }));
  for (const id of ['chat-model', 'stages-model']) {
    const select = $(id);
    const names = models.map((model) => model.id);
    if (names.join('\n') === [...select.options].map((option) => option.value).join('\n')) continue;
    const chosen = select.value;
    select.replaceChildren(...names.map((name) => el('option', { value: name }, name)));
    if (names.includes(chosen)) select.value = chosen;
  }
}

function showPlugins(plugins) {
  const rows = plugins.data.filter((row) => row.name);
  rows.sort((a, b) => (b.serves.length > 0) - (a.serves.length > 0));
  $('plugins').tBodies[0].replaceChildren(...rows.map(pluginRow));
  const exchanges = plugins.data.map((row) => row.exchange).filter(Boolean);
  const sentence = (one) => el('li', {}, `${one.target}/${one.kind}: `, el('span', { class: colour(one.state) }, one.state),
    ` ${one.file || ''} ${one.why || ''}`, one.shadow ? ` (${one.shadow.compared} compared, ${one.shadow.different} different)` : '');
  $('exchanges').replaceChildren(...(exchanges.length ? exchanges.map(sentence) : [el('li', { class: 'soft' }, 'none since the start')]));
}

function pluginRow(row) {
  const number = (text) => el('td', { class: 'number' }, text);
  const failed = Object.entries(row.traps).map(([cause, count]) => `${cause} ${count}`).join(', ');
  return el('tr', { class: 'plugin' },
    el('td', {}, row.name, el('span', { class: 'soft' }, ` ${row.version} ${row.kind}`)),
    el('td', {}, ...(row.serves.length ? row.serves.map((place) => el('span', { class: 'chip' }, place)) : [el('span', { class: 'soft' }, 'nothing now')])),
    el('td', { class: colour(row.state) }, row.state), number(whole(row.calls)), number(time(row.latency_mean_us / 1e6)),
    number(time(row.latency_max_us / 1e6)), number(row.strikes), number(row.fallbacks), number(row.replays),
    el('td', {}, failed || '–'), number(kib(row.memory_bytes_max)),
    el('td', { title: row.sha256 }, el('code', {}, row.sha256.slice(0, 12))), el('td', {}, row.signed_by || '–'));
}

// ---- chat

const history = [];
let running = null;

function tools(id) {
  const text = $(id).value.trim();
  if (!text) return undefined;
  const list = JSON.parse(text);
  if (!Array.isArray(list)) throw new Error('Tools: a JSON list is needed.');
  return list;
}

// The events of a stream, each parsed.
async function* events(answer) {
  const reader = answer.body.pipeThrough(new TextDecoderStream()).getReader();
  let held = '';
  for (;;) {
    const { value, done } = await reader.read();
    if (done) return;
    held += value;
    const blocks = held.split('\n\n');
    held = blocks.pop();
    for (const block of blocks) {
      const data = block.split('\n').filter((one) => one.startsWith('data: ')).map((one) => one.slice(6)).join('\n');
      if (data === '[DONE]') return;
      if (data) yield JSON.parse(data);
    }
  }
}

function bubble(who) {
  const box = el('div', { class: `message ${who}` });
  $('chat-log').append(box);
  return box;
}

async function send() {
  const text = $('chat-input').value;
  if (running || !text.trim()) return;
  const body = { model: $('chat-model').value, messages: [], stream: true, stream_options: { include_usage: true } };
  try {
    body.tools = tools('chat-tools');
  } catch (error) {
    return fault(error);
  }
  if ($('chat-temperature').value) body.temperature = Number($('chat-temperature').value);
  if ($('chat-tokens').value) body.max_tokens = Number($('chat-tokens').value);
  const system = $('chat-system').value.trim();
  if (system) body.messages.push({ role: 'system', content: system });
  bubble('user').textContent = text;
  history.push({ role: 'user', content: text });
  body.messages.push(...history);
  $('chat-input').value = '';
  running = new AbortController();
  $('chat-send').hidden = true;
  $('chat-stop').hidden = false;
  await answerTo(body, bubble('answer'));
  running = null;
  $('chat-send').hidden = false;
  $('chat-stop').hidden = true;
}

async function answerTo(body, box) {
  const parts = { reasoning: null, content: null, calls: [], note: el('div', { class: 'note' }, '…') };
  box.append(parts.note);
  const said = { role: 'assistant', content: '', tool_calls: [] };
  const part = (name) => {
    if (!parts[name]) box.insertBefore(parts[name] = el('div', { class: name }), parts.note);
    return parts[name];
  };
  const started = performance.now();
  let [first, reason, usage, why] = [null, null, null, null];
  try {
    const answer = await call('/v1/chat/completions', { method: 'POST', body: JSON.stringify(body), signal: running.signal });
    if (!answer.ok) throw new Error((await answer.json()).error.message);
    for await (const event of events(answer)) {
      if (event.error) throw new Error(event.error.message);
      usage = event.usage || usage;
      for (const choice of event.choices || []) {
        const delta = choice.delta || {};
        reason = choice.finish_reason || reason;
        const thought = delta.reasoning || delta.reasoning_content;
        if (thought || delta.content || delta.tool_calls) first = first || performance.now();
        if (thought) part('reasoning').append(thought);
        if (delta.content) part('content').append(delta.content);
        said.content += delta.content || '';
        for (const one of delta.tool_calls || []) toolCall(one, said, parts, box);
      }
    }
  } catch (error) {
    why = error.name === 'AbortError' ? 'stopped' : error.message;
  }
  if (!said.tool_calls.length) delete said.tool_calls;
  if (said.content || said.tool_calls) history.push(said);
  const ended = performance.now();
  const words = [why || reason || 'the stream broke off'];
  if (first) words.push(`first token after ${time((first - started) / 1000)}`);
  if (usage) words.push(`${usage.prompt_tokens} + ${usage.completion_tokens} tokens`);
  if (usage && first && ended > first && usage.completion_tokens > 1) {
    words.push(`${rate((usage.completion_tokens - 1) / ((ended - first) / 1000))} tokens a second`);
  }
  parts.note.textContent = words.join(' · ');
}

function toolCall(one, said, parts, box) {
  if (!said.tool_calls[one.index]) {
    said.tool_calls[one.index] = { id: one.id, type: 'function', function: { name: one.function.name, arguments: '' } };
    parts.calls[one.index] = el('div', { class: 'call mono' }, `${one.function.name} `);
    box.insertBefore(parts.calls[one.index], parts.note);
  }
  const fragment = (one.function && one.function.arguments) || '';
  said.tool_calls[one.index].function.arguments += fragment;
  parts.calls[one.index].append(fragment);
}

// ---- stages

const explorer = { steps: [], at: -1 };

async function runStages() {
  const body = { model: $('stages-model').value, text: $('stages-text').value, finish_reason: $('stages-end').value, steps: true };
  try {
    body.tools = tools('stages-tools');
    if ($('stages-prefix').value) body.prompt_prefix = $('stages-prefix').value;
    const parsed = await json('/parse', body);
    fault(null);
    explorer.steps = parsed.steps;
    const stages = parsed.stages;
    const names = ['#', 'Token', ...stages.map((name) => `after ${name}`), 'The client sees'];
    $('stages-table').tHead.replaceChildren(el('tr', {}, ...names.map((name) => el('th', {}, name))));
    const rows = parsed.steps.slice(0, ROWS_MAX).map((step, at) => {
      const row = el('tr', {}, el('td', { class: 'number soft' }, at + 1), el('td', { class: 'token' }, tokenCell(step)),
        ...step.stages.map((list) => el('td', {}, ...list.map(chip))), el('td', {}, ...step.deltas.map(chip)));
      row.addEventListener('click', () => look(at));
      return row;
    });
    $('stages-table').tBodies[0].replaceChildren(...rows);
    look(parsed.steps.length - 1, `finish_reason ${parsed.finish_reason}, ${parsed.reasoning_tokens} of ${parsed.tokens} tokens are reasoning`);
  } catch (error) {
    fault(error);
  }
}

function tokenCell(step) {
  if (!step.token) return el('span', { class: 'soft' }, 'end');
  const added = step.fed.some((event) => event.token === step.token.id);
  return el('span', { class: added ? 'chip' : '', title: `token ${step.token.id}` }, visible(step.token.text));
}

const visible = (text) => text.replaceAll('\n', '⏎').replaceAll(' ', '␣').replaceAll('\t', '⇥');

// Events of stages and deltas for clients, alike.
function chip(event) {
  const kind = event.type === 'text' ? event.channel : event.type;
  const text = {
    'call-start': () => `call ${event.index}: ${event.name}`,
    'call-arguments': () => visible(event.fragment),
    'call-end': () => event.complete ? `end of call ${event.index}` : `call ${event.index} broke off`,
    ext: () => `${event.key} = ${event.value}`,
  }[event.type] || (() => visible(event.text));
  return el('span', { class: `event ${kind.startsWith('call') ? 'call' : kind}`, title: kind }, text());
}

// Marks a step, and shows what a client has by then.
function look(at, note) {
  const { steps } = explorer;
  explorer.at = Math.max(0, Math.min(at, steps.length - 1));
  const rows = $('stages-table').tBodies[0].rows;
  [...rows].forEach((row, index) => row.classList.toggle('here', index === explorer.at));
  // Within its own box: the buttons must stay where they are.
  const frame = $('stages-table').parentElement;
  if (!note && rows[explorer.at]) frame.scrollTop = rows[explorer.at].offsetTop - frame.clientHeight / 2;
  const seen = { content: '', reasoning: '', calls: [] };
  for (const delta of steps.slice(0, explorer.at + 1).flatMap((step) => step.deltas)) {
    if (delta.type === 'content' || delta.type === 'reasoning') seen[delta.type] += delta.text;
    if (delta.type === 'call-start') seen.calls.push(`${delta.name} `);
    if (delta.type === 'call-arguments') seen.calls[seen.calls.length - 1] += delta.fragment;
  }
  const box = (name, text) => el('div', { 'data-part': name }, el('h4', {}, name), text);
  $('stages-message').replaceChildren(box('content', seen.content), box('reasoning', seen.reasoning), box('calls', seen.calls.join('\n')));
  $('stages-back').disabled = explorer.at <= 0;
  $('stages-next').disabled = explorer.at >= steps.length - 1;
  $('stages-at').textContent = note || `after step ${explorer.at + 1} of ${steps.length}`;
}

// ---- start

function route() {
  const names = ['overview', 'chat', 'stages'];
  const here = names.includes(location.hash.slice(1)) ? location.hash.slice(1) : 'overview';
  for (const name of names) $(`view-${name}`).hidden = name !== here;
  for (const link of document.querySelectorAll('nav a')) link.classList.toggle('here', link.hash === `#${here}`);
}

const EXAMPLE_TOOLS = [{ type: 'function', function: { name: 'get_weather', parameters: { type: 'object', properties: { city: { type: 'string' } } } } }];
const EXAMPLE_TEXT = '<think>A tool knows.</think>One moment.\n<tool_call>\n{"name": "get_weather", "arguments": {"city": "Oslo"}}\n</tool_call>';

$('stages-tools').value = JSON.stringify(EXAMPLE_TOOLS, null, 1);
$('stages-text').value = EXAMPLE_TEXT;
addEventListener('hashchange', route);
$('key-form').addEventListener('submit', (event) => {
  event.preventDefault();
  sessionStorage.setItem(KEY, $('key').value);
  $('key').value = '';
  $('key-form').hidden = true;
  poll();
});
$('chat-form').addEventListener('submit', (event) => { event.preventDefault(); send(); });
$('chat-input').addEventListener('keydown', (event) => {
  if (event.key === 'Enter' && !event.shiftKey && !event.isComposing) { event.preventDefault(); send(); }
});
$('chat-stop').addEventListener('click', () => running && running.abort());
$('chat-clear').addEventListener('click', () => { history.length = 0; $('chat-log').replaceChildren(); });
$('stages-run').addEventListener('click', runStages);
$('stages-back').addEventListener('click', () => look(explorer.at - 1));
$('stages-next').addEventListener('click', () => look(explorer.at + 1));
route();
(async () => {
  for (;;) {
    if (!document.hidden) await poll();
    await new Promise((done) => setTimeout(done, POLL_MS));
  }
})();
