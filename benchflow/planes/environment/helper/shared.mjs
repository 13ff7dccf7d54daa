// What the helper's programs have in common: their one form of request, answer and failure, files, and SQLite.
//
// Its text is sent before that of the program. `shared.py` is the same in Python, and says why.

import fs from "node:fs";
import { dirname } from "node:path";
import { createHash } from "node:crypto";
import { pathToFileURL } from "node:url";
import { DatabaseSync } from "node:sqlite";

const NEVER = ["/proc", "/sys", "/dev", "/run/benchflow", "/var/lib/benchflow"];
const PIECE = 1 << 20;

export class HelperError extends Error {
  constructor(kind, message, path = null) {
    super(message);
    Object.assign(this, { kind, path });
  }
}

export function kindOf(error) {
  if (error.syscall) return { ENOSPC: "full", EDQUOT: "full", EROFS: "read-only" }[error.code] ?? "state";
  const kinds = { locked: "busy", "is full": "full", "not a database": "not-a-database", malformed: "not-a-database" };
  const found = Object.entries({ ...kinds, readonly: "read-only" }).find(([word]) => error.message.includes(word));
  return found ? found[1] : "state";
}

export function failureOf(error, path) {
  if (error instanceof HelperError || error instanceof TypeError || error instanceof ReferenceError) return error;
  const kind = kindOf(error);
  const words = { full: "the sandbox's disk is full", busy: "a process holds the database" };
  return new HelperError(kind, words[kind] ?? error.message, path);
}

export function about(path, work) {
  try {
    return work();
  } catch (error) {
    throw failureOf(error, path);
  }
}

export function connect(path, patience, mode = "mode=rw") {
  const url = pathToFileURL(path);
  url.search = mode;
  return new DatabaseSync(url, { timeout: Math.round(patience * 1000), allowExtension: false });
}

export function statusOf(path) {
  try {
    return fs.statSync(path);
  } catch (error) {
    if (error.code === "ENOENT" || error.code === "ENOTDIR") return null;
    throw error;
  }
}

// Where a path leads, also when nothing is there.
function resolve(path, depth = 0) {
  if (path === "/" || depth > 40) return path;
  const parent = resolve(dirname(path), depth);
  const place = (parent === "/" ? "" : parent) + path.slice(path.lastIndexOf("/"));
  let link;
  try {
    link = fs.readlinkSync(place);
  } catch {
    return place;
  }
  return resolve(link.startsWith("/") ? normal(link) : normal(`${parent}/${link}`), depth + 1);
}

function normal(path) {
  return new URL(pathToFileURL(path)).pathname.split("/").map(decodeURIComponent).join("/").replace(/(.)\/$/, "$1");
}

export function real(path, foreign) {
  const place = resolve(path);
  const never = place.startsWith("/dev/shm/") ? [] : NEVER;
  for (const root of [...never, ...foreign.map((each) => resolve(each))]) {
    if (place === root || place.startsWith(root.replace(/\/$/, "") + "/"))
      throw new HelperError("foreign", `leads to ${place}, which is not the sandbox's own`, path);
  }
  return place;
}

export function sync(path) {
  const fd = fs.openSync(path, "r");
  try {
    fs.fsyncSync(fd);
  } finally {
    fs.closeSync(fd);
  }
}

export async function alone(directory, patience, work) {
  const lock = new DatabaseSync(`${directory}/.lock`, { timeout: Math.round(patience * 1000) });
  try {
    try {
      lock.exec("BEGIN EXCLUSIVE");
    } catch (error) {
      throw new HelperError(kindOf(error), `the snapshots are locked: ${error.message}`, directory);
    }
    return await work();
  } finally {
    lock.close();
  }
}

export function digest(path) {
  const seen = createHash("sha256");
  const piece = Buffer.alloc(PIECE);
  const fd = fs.openSync(path, "r");
  try {
    for (let size; (size = fs.readSync(fd, piece)) > 0; ) seen.update(piece.subarray(0, size));
  } finally {
    fs.closeSync(fd);
  }
  return seen.digest("hex");
}

function say(answer) {
  // As ASCII, whatever the locale is.
  const text = JSON.stringify(answer).replace(/[\u0080-\uffff]/g, (char) => `\\u${char.charCodeAt(0).toString(16).padStart(4, "0")}`);
  fs.writeSync(1, `benchflow ${text}\n`);
  process.exit(0);
}

export async function run(operation) {
  const request = JSON.parse(process.argv.slice(1).join(""));
  // Whoever has asked does not wait any longer.
  setTimeout(() => process.exit(142), (request.timeout + 1) * 1000).unref();
  process.umask(0o077);
  try {
    say(await operation(request));
  } catch (error) {
    const { kind, message, path } = failureOf(error, null);
    if (kind === undefined) throw error;
    say({ error: { kind, message, path } });
  }
}
