// A minimal agent: one model, the tools `read`, `write` and `run`, those of MCP servers (mcp.mjs), and a loop. For
// endpoints that a trainer serves.
//
// Speaks the Agent Client Protocol on stdio, and OpenAI chat completions (whole replies, never a stream) to the model.
// Every conversation is a file below $HOME/.policy/sessions, written after each message: what the model is asked is
// made of that file alone, and messages are only ever added, so that a copy of the world goes on with the same prefix.
//
//   POLICY_BASE_URL             with /v1, as OpenAI's clients take it
//   POLICY_MODEL                as the endpoint spells it
//   POLICY_API_KEY              none is sent if it is not set
//   POLICY_TEMPERATURE, POLICY_TOP_P, POLICY_MAX_TOKENS, POLICY_SEED    left to the endpoint if not set
//   POLICY_MAX_STEPS            model calls a turn (100)
//   POLICY_SYSTEM_PROMPT        in place of the one below; set and empty: none
//   POLICY_COMMAND_TIMEOUT_SEC  for one command, or one call of an MCP server's tool (300)

import fs from "node:fs";
import os from "node:os";
import path from "node:path";
import { spawn } from "node:child_process";
import { randomUUID } from "node:crypto";
import { setTimeout as sleep } from "node:timers/promises";

import { misfitOf, post, toolsOf } from "./mcp.mjs";

const VERSION = "1.2.0";
const PROTOCOL = 1;
const FORMAT = 1;

const SYSTEM_PROMPT = `You are an agent at work in a Linux sandbox. Do the task that you are given with your tools. \
Commands run in the workspace, each in a shell of its own, and relative paths begin there. Nobody answers questions \
while you work. When the task is done and you have checked the result, answer without calling a tool.`;

const OUTPUT_LIMIT = 24_000;
const LINES = 2000;
// How long what a command leaves behind may hold its output open when it has ended itself.
const LAST_WORDS_MS = 500;

const RETRIES = 6;
const FIRST_WAIT_MS = 500;
const LONGEST_WAIT_MS = 60_000;
const QUOTED = 500;

const PARSE_ERROR = -32700;
const INVALID_REQUEST = -32600;
const METHOD_NOT_FOUND = -32601;
const INVALID_PARAMS = -32602;
const INTERNAL_ERROR = -32603;
const NOT_FOUND = -32002;

/** A request that is answered by an error. */
class Refusal extends Error {
  constructor(code, message) {
    super(message);
    this.code = code;
  }
}

const isObject = (value) => typeof value === "object" && value !== null && !Array.isArray(value);

// --- settings --------------------------------------------------------------------------------------------

/** What the environment says. Read when a session begins, so that `initialize` needs none of it. */
function readSettings() {
  const sampling = {
    temperature: numberOf("POLICY_TEMPERATURE", { least: 0 }),
    top_p: numberOf("POLICY_TOP_P", { least: 0, most: 1 }),
    max_tokens: numberOf("POLICY_MAX_TOKENS", { least: 1, whole: true }),
    seed: numberOf("POLICY_SEED", { whole: true }),
  };
  return {
    url: endpoint(required("POLICY_BASE_URL")),
    key: process.env.POLICY_API_KEY || undefined,
    // What is undefined is not sent.
    request: { model: required("POLICY_MODEL"), ...sampling },
    steps: numberOf("POLICY_MAX_STEPS", { otherwise: 100, least: 1, whole: true }),
    seconds: numberOf("POLICY_COMMAND_TIMEOUT_SEC", { otherwise: 300, least: 0.001, most: 2_000_000 }),
    system: process.env.POLICY_SYSTEM_PROMPT ?? SYSTEM_PROMPT,
  };
}

function required(name) {
  if (!process.env[name]) throw new Refusal(INTERNAL_ERROR, `${name} is not set`);
  return process.env[name];
}

function endpoint(base) {
  const url = URL.parse(base);
  if (!url || !["http:", "https:"].includes(url.protocol)) {
    throw new Refusal(INTERNAL_ERROR, `POLICY_BASE_URL=${base} is not the address of an HTTP endpoint`);
  }
  url.pathname = url.pathname.replace(/\/*$/, "/chat/completions");
  return url;
}

function numberOf(name, { otherwise, least = -Infinity, most = Infinity, whole = false }) {
  const text = (process.env[name] ?? "").trim();
  if (text === "") return otherwise;
  const value = Number(text);
  if (!Number.isFinite(value) || value < least || value > most || (whole && !Number.isSafeInteger(value))) {
    throw new Refusal(INTERNAL_ERROR, `${name}=${text} is not a number that it can be`);
  }
  return value;
}

// --- the conversation ------------------------------------------------------------------------------------

/**
 * A session and its file. An entry is a message as the model is sent it; that of a tool's result also has what its
 * update said. tools: by name. pending: the calls of the last reply that have no result yet, in their order.
 */
class Session {
  constructor(id, cwd, settings, tools) {
    Object.assign(this, { id, cwd, settings, tools, entries: [], pending: [], turn: null });
    this.names = new Set();
  }

  static begin(cwd, settings, tools) {
    const session = new Session(randomUUID(), cwd, settings, tools);
    if (settings.system) session.add({ message: { role: "system", content: settings.system } });
    else session.save();
    return session;
  }

  /** retell: whether the client is to hear all of it again. */
  static load(id, cwd, settings, tools, { retell }) {
    let stored;
    try {
      stored = JSON.parse(fs.readFileSync(fileOf(id), "utf8"));
    } catch (error) {
      if (error.code === "ENOENT") throw new Refusal(NOT_FOUND, `there is no session ${id}`);
      throw new Refusal(INTERNAL_ERROR, `the session ${id} cannot be read: ${error.message}`);
    }
    if (stored?.format !== FORMAT) throw new Refusal(INTERNAL_ERROR, `the session ${id} is of another format`);
    const session = new Session(id, cwd, settings, tools);
    for (const entry of stored.entries) session.recall(entry, retell);
    session.settle("interrupted: whether it was carried out is not known");
    return session;
  }

  get messages() {
    return this.entries.map((entry) => entry.message);
  }

  add(entry) {
    this.entries.push(entry);
    try {
      this.save();
    } catch (error) {
      this.entries.pop();
      throw error;
    }
    this.note(entry);
  }

  save() {
    const file = fileOf(this.id);
    fs.mkdirSync(path.dirname(file), { recursive: true, mode: 0o700 });
    fs.writeFileSync(`${file}.part`, JSON.stringify({ format: FORMAT, entries: this.entries }), { mode: 0o600 });
    fs.renameSync(`${file}.part`, file);
  }

  note({ message }) {
    if (message.role === "tool") this.pending.shift();
    if (message.role === "assistant") this.pending = (message.tool_calls ?? []).map((call) => this.called(call));
  }

  /** A call of the model's. name: its id where that is the first of its kind; some endpoints count anew every time. */
  called(call) {
    const place = this.names.size;
    const name = this.names.has(call.id) ? `${call.id}-${place}` : call.id;
    this.names.add(name);
    return { id: call.id, name, tool: String(call.function?.name ?? ""), given: call.function?.arguments };
  }

  // --- what the client hears

  tell(update) {
    send({ jsonrpc: "2.0", method: "session/update", params: { sessionId: this.id, update } });
  }

  say(kind, text) {
    if (text) this.tell({ sessionUpdate: kind, content: { type: "text", text } });
  }

  speak(message) {
    this.say("agent_thought_chunk", thoughtOf(message));
    this.say("agent_message_chunk", textOf(message));
  }

  announce(call) {
    const { tool, input } = understood(call, this.tools);
    this.tell({
      sessionUpdate: "tool_call",
      toolCallId: call.name,
      title: tool?.title(input) ?? (call.tool || "a tool without a name"),
      kind: this.tools.get(call.tool)?.kind ?? "other",
      status: "in_progress",
      ...(tool?.place && { locations: [tool.place(input, this.cwd)] }),
      rawInput: input ?? call.given ?? null,
    });
  }

  report(call, { message, status, more }) {
    const rawOutput = { output: message.content, ...more };
    const said = [{ type: "content", content: { type: "text", text: message.content } }];
    const content = this.tools.get(call.tool)?.server && { content: said };
    this.tell({ sessionUpdate: "tool_call_update", toolCallId: call.name, status, ...content, rawOutput });
  }

  recall(entry, retell) {
    const [call] = this.pending;
    this.entries.push(entry);
    this.note(entry);
    if (!retell) return;
    const { role, content } = entry.message;
    if (role === "user") this.say("user_message_chunk", content);
    if (role === "assistant") this.speak(entry.message);
    if (role === "tool") {
      this.announce(call);
      this.report(call, entry);
    }
  }

  // --- what is done

  result(call, { text, ok, more }) {
    const message = { role: "tool", tool_call_id: call.id, content: text };
    const entry = { message, status: ok ? "completed" : "failed", ...(more && { more }) };
    this.add(entry);
    this.report(call, entry);
  }

  async carryOut(signal) {
    const [call] = this.pending;
    this.announce(call);
    const { cwd, tools, settings } = this;
    this.result(call, await outcomeOf(call, tools, { cwd, seconds: settings.seconds, signal }));
  }

  /** Give every call that has no result one: an endpoint refuses a conversation in which one lacks. */
  settle(why) {
    while (this.pending.length) {
      this.announce(this.pending[0]);
      this.result(this.pending[0], { text: why, ok: false });
    }
  }
}

const fileOf = (id) => path.join(os.homedir(), ".policy", "sessions", `${id}.json`);

function textOf({ content, refusal }) {
  if (Array.isArray(content)) return content.map((part) => part?.text ?? "").join("");
  return content || refusal || "";
}

// Endpoints do not agree on the name.
const thoughtOf = ({ reasoning_content, reasoning }) =>
  [reasoning_content, reasoning].find((text) => typeof text === "string") ?? "";

// --- the model -------------------------------------------------------------------------------------------

/** One call, repeated while the endpoint is only busy or away. Returns {message, finish, usage}. */
async function askModel({ settings: { url, key, request }, tools, messages }, signal) {
  const body = JSON.stringify({ ...request, tools: offered(tools), messages });
  for (let repeated = 0; ; repeated++) {
    const answer = await exchange(url, key, body, signal).catch((error) => ({ problem: error.message || error.code }));
    signal.throwIfAborted();
    const { status, problem } = answer;
    if (status >= 200 && status < 300) return replyOf(answer);
    const said = problem ? `cannot be reached: ${problem}` : `answered ${status}: ${beginning(answer)}`;
    const passing = problem || status === 429 || status >= 500;
    if (!passing || repeated === RETRIES) throw new Refusal(INTERNAL_ERROR, `the model's endpoint ${said}`);
    const wait = waitOf(answer, repeated);
    console.error(`policy: the model's endpoint ${said}; again in ${wait / 1000} s (${repeated + 1} of ${RETRIES})`);
    await sleep(wait, undefined, { signal });
  }
}

async function exchange(url, key, body, signal) {
  const headers = {
    accept: "application/json",
    "user-agent": `policy/${VERSION}`,
    ...(key && { authorization: `Bearer ${key}` }),
  };
  const response = await post(url, headers, body, signal);
  const parts = [];
  for await (const part of response) parts.push(part);
  const text = Buffer.concat(parts).toString();
  // Some endpoints repeat the key that they do not accept.
  const shown = key ? text.replaceAll(key, "[the key]") : text;
  return { status: response.statusCode, after: response.headers["retry-after"], text, shown };
}

const beginning = ({ shown }) => (shown.length > QUOTED ? `${shown.slice(0, QUOTED)}…` : shown) || "(nothing)";

function waitOf({ after }, repeated) {
  const asked = after === undefined ? NaN : Number.isNaN(Number(after)) ? Date.parse(after) - Date.now() : after * 1000;
  if (!Number.isNaN(asked)) return Math.min(Math.max(asked, 0), LONGEST_WAIT_MS);
  // Spread, so that many rollouts do not come back at one moment.
  return Math.round(FIRST_WAIT_MS * 2 ** repeated * (0.75 + Math.random() / 2));
}

function replyOf(answer) {
  let body;
  try {
    body = JSON.parse(answer.text);
  } catch {
    body = null;
  }
  const choice = body?.choices?.[0];
  if (!isObject(choice?.message)) {
    throw new Refusal(INTERNAL_ERROR, `the model's endpoint answered without a message: ${beginning(answer)}`);
  }
  return { message: kept(choice.message), finish: choice.finish_reason, usage: body.usage };
}

/** The message as it came, without what is empty: some endpoints do not take back all that they send. */
function kept(message) {
  const full = ([, value]) => value !== null && !(Array.isArray(value) && value.length === 0);
  const { role, tool_calls: calls, ...rest } = Object.fromEntries(Object.entries(message).filter(full));
  if (!Array.isArray(calls)) return { role: "assistant", content: "", ...rest };
  const named = calls.map((call, place) => ({ ...call, id: String(call?.id || `call_${place}`) }));
  return { role: "assistant", content: null, ...rest, tool_calls: named };
}

/** The sum of what the endpoint told of all calls of a turn; nothing if it told nothing. */
class Usage {
  add(usage) {
    if (!isObject(usage)) return;
    const count = (value) => (Number.isFinite(value) && value > 0 ? value : 0);
    const [input, output] = [count(usage.prompt_tokens), count(usage.completion_tokens)];
    this.sum ??= { inputTokens: 0, outputTokens: 0, totalTokens: 0, cachedReadTokens: 0, thoughtTokens: 0 };
    this.sum.inputTokens += input;
    this.sum.outputTokens += output;
    this.sum.totalTokens += count(usage.total_tokens) || input + output;
    this.sum.cachedReadTokens += count(usage.prompt_tokens_details?.cached_tokens);
    this.sum.thoughtTokens += count(usage.completion_tokens_details?.reasoning_tokens);
  }
}

// --- the tools -------------------------------------------------------------------------------------------

const PATH = { type: "string", description: "absolute, or relative to the workspace" };
const resolved = ({ path: given }, cwd) => path.resolve(cwd, given);

/** The agent's own. Those of MCP servers (see `toolsOf`) have their arguments looked at by the server. */
const TOOLS = new Map([
  [
    "read",
    {
      description: `Read a file of text: its lines from \`line\` on, at most \`limit\` of them.`,
      properties: {
        path: PATH,
        line: { type: "integer", minimum: 1, description: "the first line, from 1 (default: 1)" },
        limit: { type: "integer", minimum: 1, description: `how many lines (default: ${LINES})` },
      },
      required: ["path"],
      kind: "read",
      title: (input) => `read ${input.path}`,
      place: (input, cwd) => ({ path: resolved(input, cwd), ...(input.line && { line: input.line }) }),
      act: readLines,
    },
  ],
  [
    "write",
    {
      description: "Write a file: all of its content. Directories that lack are made.",
      properties: { path: PATH, content: { type: "string" } },
      required: ["path", "content"],
      kind: "edit",
      title: (input) => `write ${input.path}`,
      place: (input, cwd) => ({ path: resolved(input, cwd) }),
      act: writeFile,
    },
  ],
  [
    "run",
    {
      description:
        "Run a command with `sh -c` in the workspace. You get its output, of a long one the beginning and the end, " +
        "and its exit status.",
      properties: { command: { type: "string" } },
      required: ["command"],
      kind: "execute",
      title: (input) => (input.command.length > 100 ? `${input.command.slice(0, 100)}…` : input.command),
      act: runCommand,
    },
  ],
]);

const schemaOf = ({ properties, required }) => ({ type: "object", properties, required, additionalProperties: false });

function offered(tools) {
  return [...tools].map(([name, tool]) => ({
    type: "function",
    function: { name, description: tool.description, parameters: tool.parameters ?? schemaOf(tool) },
  }));
}

/** What a call asks for: {tool, input}, or with what is wrong with it: {wrong}. input: also of a wrong one, if read. */
function understood({ tool: name, given }, tools) {
  const tool = tools.get(name);
  let input = given;
  if (typeof given === "string") {
    try {
      input = JSON.parse(given);
    } catch (error) {
      return { wrong: tool ? `the arguments are not JSON: ${error.message}` : noTool(name, tools) };
    }
  }
  if (!tool) return { input, wrong: noTool(name, tools) };
  const wrong = isObject(input) ? misfit(tool, input) : "the arguments are not a JSON object";
  return wrong ? { input, wrong } : { tool, input };
}

const noTool = (name, tools) => `there is no tool ${JSON.stringify(name)}: use ${[...tools.keys()].join(", ")}`;

function misfit({ server, properties, required }, input) {
  if (server) return null;
  for (const name of required) if (input[name] === undefined) return `the argument \`${name}\` is missing`;
  for (const [name, value] of Object.entries(input)) {
    if (!Object.hasOwn(properties, name)) return `there is no argument \`${name}\``;
    const { type, minimum } = properties[name];
    const fits = type === "string" ? typeof value === "string" : Number.isSafeInteger(value) && value >= minimum;
    if (!fits) return `the argument \`${name}\` is not ${type === "string" ? "a string" : "a whole number from 1"}`;
  }
  return null;
}

/** {text, ok, more}: what the model is told, whether all went well, and what the client is told besides. */
async function outcomeOf(call, tools, world) {
  const { tool, input, wrong } = understood(call, tools);
  if (wrong) return { text: `error: ${wrong}`, ok: false };
  try {
    const outcome = await tool.act(input, world);
    return tool.server ? { ...outcome, text: cut(outcome.text) } : outcome;
  } catch (error) {
    return { text: `error: ${error.message}`, ok: false };
  }
}

function requireFile(file, stat) {
  if (!stat.isFile()) throw new Error(`${file} is ${stat.isDirectory() ? "a directory" : "not a regular file"}`);
}

async function readLines(input, { cwd, signal }) {
  const file = resolved(input, cwd);
  const { line: first = 1, limit = LINES } = input;
  requireFile(file, await fs.promises.stat(file));
  const parts = [];
  let [line, size, next] = [1, 0, ""];
  reading: for await (const data of fs.createReadStream(file, { signal })) {
    for (let from = 0, to; from < data.length; from = to) {
      to = data.indexOf(10, from) + 1 || data.length;
      if (line >= first) {
        const part = data.subarray(from, Math.min(to, from + OUTPUT_LIMIT - size));
        const whole = part.length === to - from;
        if (line >= first + limit) next = `[the file goes on: line ${line}]`;
        else if (!whole) next = `[too much at once: line ${line} goes on]`;
        if (line < first + limit) parts.push(part);
        if (next) break reading;
        size += part.length;
      }
      if (data[to - 1] === 10) line++;
    }
  }
  if (!parts.length && first > 1) next = `[the file ends before line ${first}]`;
  const text = Buffer.concat(parts).toString();
  return { text: next && text && !text.endsWith("\n") ? `${text}\n${next}` : `${text}${next}`, ok: true };
}

async function writeFile(input, { cwd }) {
  const file = resolved(input, cwd);
  const stat = await fs.promises.stat(file).catch(() => null);
  if (stat) requireFile(file, stat);
  await fs.promises.mkdir(path.dirname(file), { recursive: true });
  await fs.promises.writeFile(file, input.content);
  return { text: `wrote ${Buffer.byteLength(input.content)} bytes to ${file}`, ok: true };
}

/** Process groups of the commands that run now. */
const groups = new Set();

function killGroup(leader) {
  try {
    process.kill(-leader, "SIGKILL");
  } catch {
    // It is gone, or another user's by now.
  }
}

function runCommand({ command }, { cwd, seconds, signal }) {
  // The model's endpoint and its key are not the command's.
  const env = Object.fromEntries(Object.entries(process.env).filter(([name]) => !name.startsWith("POLICY_")));
  // One pipe for both, so that the output is in the order in which it was written.
  const argv = ["-c", 'exec sh -c "$1" 2>&1', "sh", command];
  const child = spawn("sh", argv, { cwd, env, detached: true, stdio: ["ignore", "pipe", "ignore"] });
  const output = new Output();
  return new Promise((resolve, reject) => {
    let [over, killed, lastWords] = [false, null, null];
    const end = (why) => {
      if (!groups.has(child.pid)) return;
      killed ??= why;
      killGroup(child.pid);
    };
    const cancel = () => end("cancelled");
    const late = setTimeout(() => end(`killed after ${seconds} s`), seconds * 1000);
    const finish = () => {
      if (over) return;
      over = true;
      clearTimeout(lastWords);
      signal.removeEventListener("abort", cancel);
      const how = killed ?? (child.signalCode ? `killed by ${child.signalCode}` : `exit status ${child.exitCode}`);
      const ended = child.signalCode ? { signal: child.signalCode } : { exitCode: child.exitCode };
      resolve({ text: output.closed(`[${how}]`), ok: !killed && child.exitCode === 0, more: ended });
    };
    // What it leaves running may go on writing: the pipe is read for as long as it is open.
    child.stdout.on("data", (data) => over || output.add(data));
    child.on("error", (error) => {
      clearTimeout(late);
      signal.removeEventListener("abort", cancel);
      reject(new Error(`the command cannot be started in ${cwd}: ${error.message}`));
    });
    child.on("exit", () => {
      groups.delete(child.pid);
      clearTimeout(late);
      lastWords = setTimeout(finish, LAST_WORDS_MS);
    });
    child.on("close", finish);
    if (child.pid === undefined) return;
    groups.add(child.pid);
    signal.addEventListener("abort", cancel);
    if (signal.aborted) cancel();
  });
}

/** The beginning and the end of an output, whatever its size. */
class Output {
  head = [];
  tail = [];
  sizes = { head: 0, tail: 0, all: 0 };

  add(data) {
    const half = OUTPUT_LIMIT / 2;
    const first = data.subarray(0, half - this.sizes.head);
    const rest = data.subarray(first.length);
    if (first.length) this.head.push(first);
    if (rest.length) this.tail.push(rest);
    this.sizes.head += first.length;
    this.sizes.tail += rest.length;
    this.sizes.all += data.length;
    while (this.tail.length && this.sizes.tail - this.tail[0].length >= half) {
      this.sizes.tail -= this.tail.shift().length;
    }
  }

  get text() {
    const end = Buffer.concat(this.tail).subarray(-OUTPUT_LIMIT / 2);
    const left = this.sizes.all - this.sizes.head - end.length;
    const gap = Buffer.from(left ? `\n[${left} bytes left out]\n` : "");
    return Buffer.concat([...this.head, gap, end]).toString();
  }

  /** With a last line of ours. */
  closed(line) {
    const { text } = this;
    return `${text}${text === "" || text.endsWith("\n") ? "" : "\n"}${line}`;
  }
}

function cut(text) {
  const output = new Output();
  output.add(Buffer.from(text));
  return output.text;
}

// --- a turn ----------------------------------------------------------------------------------------------

const CUT_SHORT = { length: "max_tokens", content_filter: "refusal" };

async function takeTurn(session, content, signal) {
  const usage = new Usage();
  let stopReason;
  try {
    stopReason = await loop(session, content, usage, signal);
  } catch (error) {
    if (!signal.aborted) throw error;
  }
  if (signal.aborted) {
    session.settle("not carried out: the turn was cancelled");
    stopReason = "cancelled";
  }
  return { stopReason, ...(usage.sum && { usage: usage.sum }) };
}

async function loop(session, content, usage, signal) {
  session.settle("interrupted: whether it was carried out is not known");
  session.add({ message: { role: "user", content } });
  for (let step = 0; step < session.settings.steps; step++) {
    const reply = await askModel(session, signal);
    usage.add(reply.usage);
    session.add({ message: reply.message });
    session.speak(reply.message);
    if (Object.hasOwn(CUT_SHORT, reply.finish ?? "")) {
      session.settle("not carried out: the reply was cut short");
      return CUT_SHORT[reply.finish];
    }
    if (!session.pending.length) return "end_turn";
    while (session.pending.length && !signal.aborted) await session.carryOut(signal);
    signal.throwIfAborted();
  }
  return "max_turn_requests";
}

// --- the protocol ----------------------------------------------------------------------------------------

const sessions = new Map();

const METHODS = new Map([
  [
    "initialize",
    () => ({
      protocolVersion: PROTOCOL,
      agentInfo: { name: "policy", title: "Policy", version: VERSION },
      agentCapabilities: {
        loadSession: true,
        promptCapabilities: { image: false, audio: false, embeddedContext: false },
        mcpCapabilities: { http: true, sse: false },
        sessionCapabilities: { resume: {} },
      },
      authMethods: [],
    }),
  ],
  [
    "session/new",
    async (params) => {
      const session = Session.begin(...(await world(params)));
      sessions.set(session.id, session);
      return { sessionId: session.id };
    },
  ],
  ["session/load", (params) => load(params, { retell: true })],
  ["session/resume", (params) => load(params, { retell: false })],
  ["session/prompt", prompt],
]);

async function load(params, how) {
  const id = String(params.sessionId);
  // It becomes a part of a path.
  if (!/^[0-9a-f-]{36}$/.test(id)) throw new Refusal(NOT_FOUND, `there is no session ${id}`);
  const found = await world(params);
  if (sessions.get(id)?.turn) throw new Refusal(INVALID_REQUEST, "the session is in a turn");
  sessions.set(id, Session.load(id, ...found, how));
  return {};
}

/** What a session has besides its file: [cwd, settings, tools]. */
async function world({ cwd, mcpServers = [] }) {
  if (typeof cwd !== "string" || !path.isAbsolute(cwd) || !fs.statSync(cwd, { throwIfNoEntry: false })?.isDirectory()) {
    throw new Refusal(INVALID_PARAMS, `cwd is not the absolute path of a directory: ${cwd}`);
  }
  const wrong = misfitOf(mcpServers);
  if (wrong) throw new Refusal(INVALID_PARAMS, wrong);
  const settings = readSettings();
  try {
    return [cwd, settings, new Map([...TOOLS, ...(await toolsOf(mcpServers))])];
  } catch (error) {
    throw new Refusal(INTERNAL_ERROR, error.message);
  }
}

async function prompt(params) {
  const session = sessions.get(params.sessionId);
  if (!session) throw new Refusal(NOT_FOUND, `there is no session ${params.sessionId}`);
  if (session.turn) throw new Refusal(INVALID_REQUEST, "the session is in a turn");
  const content = wordsOf(params.prompt);
  session.turn = new AbortController();
  try {
    return await takeTurn(session, content, session.turn.signal);
  } finally {
    session.turn = null;
  }
}

function wordsOf(blocks) {
  if (!Array.isArray(blocks) || !blocks.length) throw new Refusal(INVALID_PARAMS, "the prompt is empty");
  const words = blocks.map((block) => {
    if (block?.type === "text" && typeof block.text === "string") return block.text;
    if (block?.type === "resource_link") return `[${block.name}](${block.uri})`;
    throw new Refusal(INVALID_PARAMS, `a prompt is text and links, not ${JSON.stringify(block?.type)}`);
  });
  return words.join("\n");
}

function send(message) {
  process.stdout.write(JSON.stringify(message) + "\n");
}

function refuse(id, code, message) {
  send({ jsonrpc: "2.0", id, error: { code, message } });
}

async function receive(line) {
  let message;
  try {
    message = JSON.parse(line);
  } catch {
    return refuse(null, PARSE_ERROR, "this is not JSON");
  }
  const id = message?.id ?? null;
  if (!isObject(message) || typeof message.method !== "string") {
    // Nothing is asked of the client, so that no answer of its can be for us.
    const answer = isObject(message) && ("result" in message || "error" in message);
    return answer ? undefined : refuse(id, INVALID_REQUEST, "this is not a request");
  }
  const params = isObject(message.params) ? message.params : {};
  if (!("id" in message)) {
    if (message.method === "session/cancel") sessions.get(params.sessionId)?.turn?.abort();
    return;
  }
  const act = METHODS.get(message.method);
  if (!act) return refuse(id, METHOD_NOT_FOUND, `policy does not do ${message.method}`);
  try {
    send({ jsonrpc: "2.0", id, result: await act(params) });
  } catch (error) {
    if (!(error instanceof Refusal)) console.error(error);
    refuse(id, error instanceof Refusal ? error.code : INTERNAL_ERROR, error.message);
  }
}

let rest = [];
process.stdin.on("data", (data) => {
  for (let end; (end = data.indexOf(10)) >= 0; data = data.subarray(end + 1)) {
    const line = Buffer.concat([...rest, data.subarray(0, end)]).toString();
    rest = [];
    if (line.trim()) void receive(line);
  }
  if (data.length) rest.push(data);
});
process.stdin.on("end", () => process.exit(0));
process.stdout.on("error", () => process.exit(0));
for (const name of ["SIGHUP", "SIGINT", "SIGTERM"]) {
  process.on(name, () => process.exit(128 + os.constants.signals[name]));
}
process.on("exit", () => groups.forEach(killGroup));
