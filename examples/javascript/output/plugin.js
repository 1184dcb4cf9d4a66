// A tool-call parser for an invented format: a line `!name {"key": value}` is a call, everything else is text.
//
// One stream is one Session. A line is held back while it may still become a call and decided at its end; text that turns
// out to be no call is passed on unchanged, so nothing is ever lost. Variants are {tag, val}, as the WIT names them.

const content = (text) => ({ tag: 'text', val: { channel: { tag: 'content' }, text, token: undefined } });

function isObject(text) {
  try {
    const value = JSON.parse(text);
    return value !== null && typeof value === 'object' && !Array.isArray(value);
  } catch {
    return false;
  }
}

export const lifecycle = {
  describe: () => ({ name: 'bang-calls', version: '0.1.0', summary: 'Tool calls written as lines: !name {arguments}' }),

  // There are no settings: anything but an empty object is an error that names the key.
  configure(settingsJson) {
    const [key] = Object.keys(JSON.parse(settingsJson));
    if (key !== undefined) {
      throw { severity: 'disable-plugin', code: 'invalid-settings', message: `settings: unknown key ${key}` };
    }
  },
};

class Session {
  constructor(_request) {
    this.line = '';
    this.calls = 0;
  }

  feed(events) {
    const out = [];
    for (const event of events) {
      if (event.tag === 'text' && event.val.channel.tag === 'content') {
        // Split behind each line break.
        for (const piece of event.val.text.split(/(?<=\n)/)) this.push(piece, out);
      } else {
        out.push(event);
      }
    }
    return out;
  }

  finish(_reason) {
    const out = [];
    this.endLine(out);
    return out;
  }

  push(piece, out) {
    this.line += piece;
    if (this.line.endsWith('\n')) {
      this.endLine(out);
    } else if (this.line && !this.line.startsWith('!')) {
      out.push(content(this.line));
      this.line = '';
    }
  }

  endLine(out) {
    const line = this.line;
    this.line = '';
    const call = /^!(\S+) (.*)$/.exec(line.trimEnd());
    if (call && isObject(call[2])) {
      const index = this.calls++;
      out.push({ tag: 'call-start', val: { index, id: undefined, name: call[1], kind: { tag: 'json' } } });
      out.push({ tag: 'call-arguments', val: { index, fragment: call[2] } });
      out.push({ tag: 'call-end', val: { index, complete: true } });
    } else if (line) {
      out.push(content(line));
    }
  }
}

export const stage = {
  requires: () => ({ markers: [], reasoning: [], toolSchemas: false, stop: [], ext: [] }),
  constrain: (_request) => undefined,
  Session,
};
