// A chat template: each turn under a title, and the assistant's left open. Rendering is a pure function of the request,
// which is JSON with `messages`, `tools`, `documents`, `add_generation_prompt`, `continue_final_message`, `kwargs`, `now`.

export const lifecycle = {
  describe: () => ({ name: 'titled-turns', version: '0.1.0', summary: 'Each turn under a title' }),

  configure(settingsJson) {
    const [key] = Object.keys(JSON.parse(settingsJson));
    if (key !== undefined) {
      throw { severity: 'disable-plugin', code: 'invalid-settings', message: `settings: unknown key ${key}` };
    }
  },
};

export const template = {
  // What the model's files say; this template needs nothing of it.
  load(_model) {},

  render(requestJson) {
    const request = JSON.parse(requestJson);
    let prompt = '';
    let lastTurn = 0;
    for (const { role, content } of request.messages) {
      if (typeof content !== 'string') {
        // The client gets a 400 with this message.
        throw { severity: 'reject-request', code: 'content', message: `the content of a ${role} message must be text` };
      }
      prompt += `### ${role}\n${content}\n\n`;
      if (role === 'user' || role === 'tool') lastTurn = prompt.length;
    }
    if (request.add_generation_prompt) prompt += '### assistant\n';
    return { prompt, turnPrefix: prompt.slice(lastTurn), startsIn: { tag: 'content' }, stop: ['\n### '], ext: [] };
  },
};
