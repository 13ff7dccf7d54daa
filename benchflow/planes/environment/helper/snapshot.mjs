// Captures the databases of a sandbox as of one moment. `snapshot.py` is the same in Python, and says why.

import fs from "node:fs";
import { dirname } from "node:path";
import { randomBytes } from "node:crypto";
import { DatabaseSync, backup } from "node:sqlite";
import { HelperError, about, alone, connect, digest, failureOf, real, run, statusOf, sync } from "./shared.mjs";

const ATTEMPT = 2.0;
const ALL_PAGES = 0x7fffffff;
const seconds = () => performance.now() / 1000;

class Live {
  constructor(path, place) {
    Object.assign(this, { path, place, status: statusOf(place), open: [] });
    if (this.status && !this.status.isFile()) throw new HelperError("not-a-database", "is not a file", path);
  }

  hold(patience) {
    about(this.path, () => {
      this.open.push(connect(this.place, patience));
      this.open[0].exec("BEGIN IMMEDIATE");
    });
  }

  view(patience) {
    about(this.path, () => {
      const reader = connect(this.place, patience);
      this.open.push(reader);
      reader.exec("BEGIN");
      reader.prepare("SELECT count(*) FROM sqlite_master").get();
    });
  }

  letWrite() {
    if (this.open[1].prepare("PRAGMA journal_mode").get().journal_mode === "wal") this.open[0].exec("ROLLBACK");
  }

  close() {
    while (this.open.length) this.open.pop().close();
  }
}

function holdAll(databases, patience) {
  const deadline = seconds() + patience;
  for (;;) {
    const left = deadline - seconds();
    try {
      for (const database of databases) database.hold(Math.max(0, Math.min(left, ATTEMPT)));
      for (const database of databases) database.view(ATTEMPT);
      for (const database of databases) database.letWrite();
      return;
    } catch (failure) {
      for (const database of databases) database.close();
      if (failure.kind !== "busy" || seconds() >= deadline) throw failure;
    }
  }
}

async function snapshot(request) {
  const { directory, name } = request;
  about(directory, () => {
    fs.mkdirSync(directory, { recursive: true });
    fs.chmodSync(directory, 0o700);
  });
  return await alone(directory, request.wait, async () => {
    const [final, part] = [`${directory}/${name}`, `${directory}/.${name}.part`];
    if (statusOf(`${final}/snapshot.json`)) return JSON.parse(fs.readFileSync(`${final}/snapshot.json`, "utf8"));
    for (const left of fs.readdirSync(directory))
      if (/^\..*\.part$/.test(left)) fs.rmSync(`${directory}/${left}`, { recursive: true });
    try {
      about(directory, () => fs.mkdirSync(part, 0o700));
      return await take(request, part, final);
    } catch (error) {
      fs.rmSync(part, { recursive: true, force: true });
      throw error;
    }
  });
}

async function take(request, part, final) {
  const began = seconds();
  const paths = [...new Set(request.paths)].sort();
  const declared = paths.map((path) => new Live(path, real(path, request.foreign)));
  const present = declared.filter((database) => database.status);
  const known = new Map();
  for (const { path, status } of present) {
    const file = `${status.dev} ${status.ino}`;
    if (known.has(file)) throw new HelperError("twice", `is the same file as ${known.get(file)}`, path);
    known.set(file, path);
  }
  const fence = randomBytes(16).toString("hex");
  let taken_at;
  try {
    holdAll(present, request.patience);
    taken_at = Date.now() / 1000;
    for (const database of present) await copy(database, `${part}/files${database.path}`);
  } finally {
    for (const database of declared) database.close();
  }
  const files = declared.map((each) => about(each.path, () => recorded(each, part, request.fence_table, fence)));
  const answer = { name: request.name, directory: final, fence, files, taken_at, seconds: seconds() - began };
  about(request.directory, () => {
    fs.writeFileSync(`${part}/snapshot.json`, JSON.stringify(answer));
    syncTree(part);
    fs.rmSync(final, { recursive: true, force: true });
    fs.renameSync(part, final);
    sync(request.directory);
  });
  return answer;
}

async function copy(database, target) {
  try {
    fs.mkdirSync(dirname(target), { recursive: true, mode: 0o700 });
    await backup(database.open[1], target, { rate: ALL_PAGES });
  } catch (error) {
    throw failureOf(error, database.path);
  } finally {
    database.close();
  }
}

function recorded({ path, status }, part, table, fence) {
  if (!status) return { path, present: false };
  const file = `files${path}`;
  const target = `${part}/${file}`;
  const taken = new DatabaseSync(target);
  try {
    taken.exec("PRAGMA locking_mode=EXCLUSIVE");
    taken.exec("PRAGMA synchronous=OFF");
    taken.exec(`DROP TABLE IF EXISTS ${table}`);
    taken.exec(`CREATE TABLE ${table} (nonce TEXT NOT NULL)`);
    taken.prepare(`INSERT INTO ${table} VALUES (?)`).run(fence);
  } finally {
    taken.close();
  }
  const owner = { mode: status.mode & 0o7777, uid: status.uid, gid: status.gid };
  return { path, present: true, file, sha256: digest(target), size: fs.statSync(target).size, ...owner };
}

function syncTree(directory) {
  for (const entry of fs.readdirSync(directory, { withFileTypes: true })) {
    const path = `${directory}/${entry.name}`;
    entry.isDirectory() ? syncTree(path) : sync(path);
  }
  sync(directory);
}

await run(snapshot);
