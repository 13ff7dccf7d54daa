// Asks the services of a sandbox whether they are healthy, all at once, until they are. `probe.py` is the same in Python.

import fs from "node:fs";
import net from "node:net";
import tls from "node:tls";
import { once } from "node:events";
import { setTimeout as sleep } from "node:timers/promises";
import { run } from "./shared.mjs";

const TRY = 5.0;
const LAST_WORDS = 200;
const SHOWN = 200;
const READ = 4096;
const UNTRIED = "was not tried";
const SILENT = "timed out";
const seconds = () => performance.now() / 1000;
const isHealthy = (status) => status >= 200 && status < 400;

async function tried(known, every, began, deadline, signal) {
  while (!known.healthy && seconds() < deadline && !signal.aborted) {
    const patience = Math.min(TRY, Math.max(0.05, deadline - seconds()));
    try {
      [known.healthy, known.answer] = await ask(known.target, patience);
    } catch (error) {
      const answer = told(error);
      // That the deadline has cut a try short is told only of a target that has met nothing before.
      if (patience === TRY || answer !== SILENT || known.answer === UNTRIED) known.answer = answer;
    }
    if (known.healthy) known.seconds = seconds() - began;
    else await sleep(every * 1000);
  }
}

async function ask(target, timeout) {
  const url = new URL(target);
  const scheme = url.protocol.slice(0, -1);
  const host = url.hostname.replace(/^\[|\]$/g, "");
  const socket = await connected(host, Number(url.port || { http: 80, https: 443 }[scheme]), timeout);
  let link = socket;
  try {
    if (scheme === "tcp") return [true, "connected"];
    if (scheme === "https") {
      link = tls.connect({ socket, rejectUnauthorized: false, servername: net.isIP(host) ? "" : host });
      await once(link, "secureConnect", { signal: AbortSignal.timeout(Math.ceil(timeout * 1000)) });
    }
    return await answerOf(link, url, timeout);
  } finally {
    link.destroy();
    socket.destroy();
  }
}

async function connected(host, port, timeout) {
  let refused;
  for (const name of host === "localhost" ? ["127.0.0.1", "::1"] : [host]) {
    const socket = net.connect({ host: name, port });
    try {
      await once(socket, "connect", { signal: AbortSignal.timeout(Math.ceil(timeout * 1000)) });
      return socket;
    } catch (error) {
      socket.destroy();
      refused ??= error;
    }
  }
  throw refused;
}

async function answerOf(link, url, timeout) {
  link.write(`GET ${url.pathname}${url.search} HTTP/1.1\r\nHost: ${url.host}\r\nAccept: */*\r\nConnection: close\r\n\r\n`);
  const said = await heard(link, timeout);
  const status = statusOf(said);
  if (!status) return [false, said ? "no HTTP answer: " + said.slice(0, SHOWN) : "closed without an answer"];
  if (isHealthy(status)) return [true, `HTTP ${status}`];
  const at = said.indexOf("\r\n\r\n");
  let body = at < 0 ? "" : said.slice(at + 4);
  if (said.slice(0, at).toLowerCase().includes("transfer-encoding: chunked")) body = body.split("\r\n")[1] ?? "";
  const shown = body.split(/\s+/).filter(Boolean).join(" ").slice(0, SHOWN);
  return [false, `HTTP ${status}` + (shown ? `: ${shown}` : "")];
}

function heard(link, timeout) {
  return new Promise((done, fail) => {
    let said = Buffer.alloc(0);
    const finish = () => done(said.toString());
    let timer = setTimeout(() => fail(new DOMException("", "TimeoutError")), timeout * 1000);
    link.on("data", (piece) => {
      said = Buffer.concat([said, piece]);
      const status = statusOf(said.toString());
      if (isHealthy(status) || said.length >= READ) return clearTimeout(timer), finish();
      if (!status) return;
      clearTimeout(timer);
      timer = setTimeout(finish, LAST_WORDS);
    });
    link.on("error", (error) => (clearTimeout(timer), fail(error)));
    link.on("close", () => (clearTimeout(timer), finish()));
  });
}

function statusOf(said) {
  return Number(/^HTTP\/\S+ (\d+)[^\n]*\r\n/.exec(said)?.[1] ?? 0);
}

function told(error) {
  const one = error.errors?.[0] ?? error;
  if (one.name === "AbortError" || one.name === "TimeoutError" || one.code === "ETIMEDOUT") return SILENT;
  return { ECONNREFUSED: "connection refused", ECONNRESET: "connection reset" }[one.code] ?? one.message.toLowerCase();
}

async function probe({ http, tcp, deadline: limit, exits, every }) {
  const began = seconds();
  const deadline = began + limit;
  const targets = [...http, ...tcp.map((port) => `tcp://localhost:${port}`)];
  const answers = targets.map((target) => ({ target, healthy: false, answer: UNTRIED, seconds: null }));
  const stop = new AbortController();
  const tries = answers.map((known) => tried(known, every, began, deadline, stop.signal));
  let ended = [];
  while (!ended.length && seconds() < deadline && !answers.every((known) => known.healthy)) {
    ended = exits.filter((path) => fs.existsSync(path));
    await sleep(Math.min(every * 1000, 10));
  }
  stop.abort();
  // A try that was cut short by the deadline is about to say so.
  if (!ended.length) await Promise.race([Promise.all(tries), sleep(LAST_WORDS)]);
  return { answers, ended: ended.length ? ended : exits.filter((path) => fs.existsSync(path)) };
}

await run(probe);
