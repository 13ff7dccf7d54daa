// Asks the services of a sandbox for what they show of their state. `observe.py` is the same in Python.

import http from "node:http";
import https from "node:https";
import { createHash } from "node:crypto";
import { run } from "./shared.mjs";

const MAX_BODY = 16 << 20;

async function observation(url, show, patience) {
  try {
    const [status, body] = await answerOf(url, patience);
    if (body.length > MAX_BODY) return { url, error: `the body is larger than ${MAX_BODY >> 20} MiB` };
    const digest = createHash("sha256").update(canonical(body)).digest("hex");
    const seen = { url, status, digest, size: body.length };
    return body.length <= show ? { ...seen, body: body.toString("utf8") } : seen;
  } catch (error) {
    const words = { ECONNREFUSED: "connection refused", ECONNRESET: "the answer was cut short", ABORT_ERR: "timed out" };
    return { url, error: words[error.code] ?? String(error.message).toLowerCase() };
  }
}

async function answerOf(url, patience) {
  const parts = new URL(url);
  const named = parts.hostname.replace(/^\[|\]$/g, "");
  let refused;
  // `localhost` is two addresses, and services listen on one.
  for (const host of named === "localhost" ? ["127.0.0.1", "::1"] : [named]) {
    try {
      return await got(parts, host, patience);
    } catch (error) {
      if (error.syscall !== "connect") throw error;
      refused = refused ?? error;
    }
  }
  throw refused;
}

function got(parts, host, patience) {
  // A world's certificate is its own; what counts is what it answers.
  const options = {
    host,
    port: parts.port || undefined,
    path: parts.pathname + parts.search,
    headers: { Host: parts.host, Accept: "*/*", Connection: "close" },
    rejectUnauthorized: false,
    // For all of it: a stream may never end.
    signal: AbortSignal.timeout(patience * 1000),
  };
  return new Promise((resolve, reject) => {
    const request = (parts.protocol === "https:" ? https : http).get(options, (response) => {
      const pieces = [];
      let size = 0;
      response.on("data", (piece) => {
        pieces.push(piece);
        size += piece.length;
        if (size > MAX_BODY) response.destroy();
      });
      response.on("close", () =>
        response.complete || size > MAX_BODY
          ? resolve([response.statusCode, Buffer.concat(pieces)])
          : reject(new Error("the answer was cut short")),
      );
      response.on("error", reject);
    });
    request.on("error", reject);
  });
}

// JSON with its keys in order and without spaces, and all else as it is.
function canonical(body) {
  try {
    return JSON.stringify(ordered(JSON.parse(body.toString("utf8"))));
  } catch {
    return body;
  }
}

function ordered(value) {
  if (Array.isArray(value)) return value.map(ordered);
  if (value === null || typeof value !== "object") return value;
  return Object.fromEntries(
    Object.keys(value)
      .sort()
      .map((key) => [key, ordered(value[key])]),
  );
}

async function observe(request) {
  const observed = [];
  for (const url of request.urls) observed.push(await observation(url, request.show, request.patience));
  return { observed };
}

await run(observe);
