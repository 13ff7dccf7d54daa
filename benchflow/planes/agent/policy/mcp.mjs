// The tools of MCP servers over streamable HTTP: how they are found, what the model calls them by, and their calls.
//
// A server is asked once, when a session begins: what it offers later is not offered to the model, so that all calls of
// the model in a session have the same tools. Messages of its own that come in the stream of an answer are answered (it
// may see whether we are there, and has nothing to ask of us); a stream that is for them alone is not opened.

import http from "node:http";
import https from "node:https";
import { createHash } from "node:crypto";

// The one that is asked for first. In all of them tools are the same.
const VERSIONS = ["2025-06-18", "2025-03-26", "2024-11-05"];
const START_SECONDS = 30;
const NOTE_SECONDS = 5;
const METHOD_NOT_FOUND = -32601;

// What endpoints of OpenAI's kind take as the name of a function.
const ODD = /[^a-zA-Z0-9_-]/g;
const LONGEST_NAME = 64;
const QUOTED = 500;
// Whoever answers may work for long: connections that nothing passes on are kept by these.
const KEEP_ALIVE_MS = 30_000;

const isObject = (value) => typeof value === "object" && value !== null && !Array.isArray(value);

/** A POST on a connection of its own: one that was kept may be closed by the other side just as it is used again. */
export function post(url, headers, body, signal) {
  return new Promise((resolve, reject) => {
    const sized = { ...headers, "content-type": "application/json", "content-length": Buffer.byteLength(body) };
    const options = { method: "POST", headers: sized, agent: false, signal };
    const request = (url.protocol === "https:" ? https : http).request(url, options, resolve);
    request.on("error", reject);
    request.setSocketKeepAlive(true, KEEP_ALIVE_MS);
    request.end(body);
  });
}

/** Why these are not servers of `session/new` that can be reached; null if they can be. */
export function misfitOf(servers) {
  if (!Array.isArray(servers)) return "mcpServers is not a list";
  const names = new Set();
  for (const server of servers) {
    if (typeof server?.name !== "string" || !server.name) return "an MCP server has no name";
    const named = `the MCP server ${JSON.stringify(server.name)}`;
    const transport = server.type ?? "stdio";
    if (transport !== "http") return `${named} is offered by ${transport}: policy reaches MCP servers by HTTP alone`;
    if (!["http:", "https:"].includes(URL.parse(server.url)?.protocol)) return `${named} has no address of HTTP`;
    if (names.has(server.name)) return `${named} is there twice`;
    names.add(server.name);
  }
  return null;
}

/** What the servers of `session/new` offer, by the names that the model is told. An error names the server. */
export async function toolsOf(servers) {
  const opened = await Promise.all(servers.map((given) => new Server(given).open()));
  const tools = new Map();
  for (const { server, list } of opened) {
    for (const tool of list) tools.set(nameOf(server.name, tool.name, tools), offerOf(server, tool));
  }
  return tools;
}

/** `<server>__<tool>`, with a digest where that is no name of a function, or another tool's. */
function nameOf(server, tool, taken) {
  const plain = `${server}__${tool}`;
  const name = plain.replace(ODD, "_");
  if (name === plain && name.length <= LONGEST_NAME && !taken.has(name)) return name;
  const digest = createHash("sha256").update(JSON.stringify([server, tool])).digest("hex").slice(0, 8);
  return `${name.slice(0, LONGEST_NAME - digest.length - 1)}_${digest}`;
}

function offerOf(server, { name, title, description, inputSchema }) {
  return {
    server: server.name,
    description: description ?? title,
    parameters: isObject(inputSchema) ? inputSchema : { type: "object", properties: {} },
    kind: "other",
    title: () => `${server.name}: ${name}`,
    act: (input, { seconds, signal }) => server.call(name, input, seconds, signal),
  };
}

class Server {
  #url;
  #given;
  #session;
  #version;
  #last = 0;

  constructor({ name, url, headers }) {
    this.name = name;
    this.#url = new URL(url);
    this.#given = Object.fromEntries((headers ?? []).map((header) => [header.name, header.value]));
  }

  /** Begin, and ask for the tools. */
  async open() {
    const list = await this.#within(START_SECONDS, async (signal) => {
      const { capabilities } = await this.#begin(signal);
      return capabilities?.tools ? this.#list(signal) : [];
    });
    return { server: this, list };
  }

  /** {text, ok}: what the tool gave. */
  async call(tool, input, seconds, cancelled) {
    const params = { name: tool, arguments: input };
    const result = await this.#within(seconds, (signal) => this.#ask("tools/call", params, signal), cancelled);
    return result.isError ? { text: `error: ${textOf(result)}`, ok: false } : { text: textOf(result), ok: true };
  }

  async #within(seconds, act, cancelled) {
    const late = AbortSignal.timeout(Math.ceil(seconds * 1000));
    try {
      return await act(cancelled ? AbortSignal.any([cancelled, late]) : late);
    } catch (error) {
      if (cancelled?.aborted) throw new Error("cancelled: whether it was carried out is not known");
      const why = late.aborted ? `gave no answer within ${seconds} s` : error.message;
      const { origin, pathname } = this.#url;
      throw new Error(`the MCP server ${JSON.stringify(this.name)} (${origin}${pathname}) ${why}`);
    }
  }

  async #begin(signal) {
    this.#session = this.#version = undefined;
    const hello = { protocolVersion: VERSIONS[0], capabilities: {}, clientInfo: { name: "policy", version: "1" } };
    const result = await this.#ask("initialize", hello, signal);
    if (!VERSIONS.includes(result.protocolVersion)) {
      throw new Error(`speaks MCP ${result.protocolVersion}, which is none of ${VERSIONS.join(", ")}`);
    }
    this.#version = result.protocolVersion;
    await this.#tell({ method: "notifications/initialized" }, signal);
    return result;
  }

  async #list(signal) {
    const list = [];
    let cursor;
    do {
      const page = await this.#ask("tools/list", cursor === undefined ? {} : { cursor }, signal);
      list.push(...(page.tools ?? []));
      cursor = page.nextCursor ?? undefined;
    } while (cursor !== undefined);
    return list.filter((tool) => typeof tool?.name === "string");
  }

  // --- messages

  async #ask(method, params, signal) {
    const id = ++this.#last;
    const body = { id, method, params };
    try {
      let response = await this.#send(body, signal);
      if (response.statusCode === 404 && this.#session) {
        // It has forgotten the session, and so has not done what it was asked.
        response.destroy();
        await this.#begin(signal);
        response = await this.#send(body, signal);
      }
      await requireOk(response);
      if (method === "initialize") this.#session = response.headers["mcp-session-id"];
      return await this.#answer(id, response);
    } catch (error) {
      // That nobody listens any more does not tell it to end what it does.
      if (signal.aborted && this.#version) this.#say({ method: "notifications/cancelled", params: { requestId: id } });
      throw error;
    }
  }

  async #answer(id, response) {
    for await (const message of messagesOf(response)) {
      if (!isObject(message)) continue;
      if ("method" in message) {
        if ("id" in message) this.#say({ id: message.id, ...replyTo(message.method) });
      } else if (message.id === id) {
        if (isObject(message.result)) return message.result;
        throw new Error(`answered with an error: ${beginning(message.error?.message ?? JSON.stringify(message))}`);
      }
    }
    throw new Error("ended its answer without a result");
  }

  /** A message that has no answer. */
  async #tell(message, signal) {
    const response = await this.#send(message, signal);
    await requireOk(response);
    response.destroy();
  }

  #say(message) {
    void this.#tell(message, AbortSignal.timeout(NOTE_SECONDS * 1000)).catch(() => {});
  }

  async #send(message, signal) {
    const headers = {
      ...this.#given,
      accept: "application/json, text/event-stream",
      ...(this.#session && { "mcp-session-id": this.#session }),
      ...(this.#version && { "mcp-protocol-version": this.#version }),
    };
    try {
      return await post(this.#url, headers, JSON.stringify({ jsonrpc: "2.0", ...message }), signal);
    } catch (error) {
      throw new Error(`cannot be reached: ${error.message || error.code}`);
    }
  }
}

function replyTo(method) {
  if (method === "ping") return { result: {} };
  return { error: { code: METHOD_NOT_FOUND, message: `policy does not do ${method}` } };
}

// --- what is said in an answer ---------------------------------------------------------------------------

async function requireOk(response) {
  if (response.statusCode >= 200 && response.statusCode < 300) return;
  let text = "";
  for await (const part of partsOf(response)) text += part;
  throw new Error(`answered ${response.statusCode}: ${beginning(text)}`);
}

const beginning = (text) => (text.length > QUOTED ? `${text.slice(0, QUOTED)}…` : text) || "(nothing)";

async function* partsOf(response) {
  response.setEncoding("utf8");
  try {
    yield* response;
  } catch (error) {
    throw new Error(`broke off its answer: ${error.message}`);
  }
}

/** The messages of an answer as they come: one document, or a stream of events. */
async function* messagesOf(response) {
  const type = (response.headers["content-type"] ?? "").split(";")[0].trim().toLowerCase();
  if (type !== "text/event-stream") {
    let text = "";
    for await (const part of partsOf(response)) text += part;
    yield* [parsed(text)].flat();
    return;
  }
  let data = [];
  for await (const line of linesOf(response)) {
    if (line.startsWith("data:")) data.push(line.slice(5).replace(/^ /, ""));
    if (line !== "") continue;
    // An event without data only says where the stream is.
    if (data.join("")) yield parsed(data.join("\n"));
    data = [];
  }
}

async function* linesOf(response) {
  let rest = "";
  for await (const part of partsOf(response)) {
    // A carriage return at the end may be half of a line's end.
    const lines = (rest + part).split(/\r\n|\n|\r(?!$)/);
    rest = lines.pop();
    yield* lines;
  }
  if (rest.endsWith("\r")) yield rest.slice(0, -1);
}

function parsed(text) {
  try {
    return JSON.parse(text);
  } catch {
    throw new Error(`answered with what is not JSON: ${beginning(text)}`);
  }
}

/** What the model is told of a result. */
function textOf({ content, structuredContent }) {
  const parts = Array.isArray(content) ? content.filter(isObject) : [];
  const words = parts.map(wordsOf);
  if (structuredContent !== undefined && !parts.some((part) => part.type === "text")) {
    words.push(JSON.stringify(structuredContent));
  }
  return words.join("\n");
}

function wordsOf(part) {
  if (part.type === "text") return String(part.text ?? "");
  if (part.type === "resource_link") return `[${part.name}](${part.uri})`;
  if (part.type === "resource") return part.resource?.text ?? `[resource: ${part.resource?.uri}]`;
  return `[${part.type}: ${part.mimeType ?? "not text"}]`;
}
