// Holds an agent's stdio to files, so that whoever talks to it may come and go.
//
//   node pump.mjs DIRECTORY UID GID CWD PROGRAM [ARGUMENT ...]
//
// Runs as root in the sandbox and the agent as UID. What is appended to `in` goes to the agent, in whole lines; what it
// says is appended to `out` and `err`; when it has ended, `exit` says how. The agent reaches none of these files: it
// holds pipes, whose other ends are here.

import fs from "node:fs";
import { spawn } from "node:child_process";

const [directory, uid, gid, cwd, program, ...args] = process.argv.slice(2);
const ERR_LIMIT = 16 * 1024 * 1024;
// As MAX_OUTPUT in bounds.py: what an agent says is kept whole, and nobody says so much. The disk belongs to all.
const OUT_LIMIT = 1024 * 1024 * 1024;
const PIECE = 256 * 1024;
const LOOK_EVERY_MS = 500;
// How long what an agent leaves behind may hold its output open when it has ended itself.
const LAST_WORDS_MS = 1000;
// What a disk says that will take more when somebody has made space, or its device is back.
const PASSING = new Set(["ENOSPC", "EDQUOT", "EIO", "EAGAIN"]);

const open = (name) => fs.openSync(`${directory}/${name}`, "a", 0o600);
const out = open("out");
const err = open("err");
const input = fs.openSync(`${directory}/in`, "a+", 0o600);

// Returns whether the disk has done it, false for an error that passes.
function attempt(work) {
  try {
    work();
    return true;
  } catch (error) {
    if (!PASSING.has(error.code)) throw error;
    return false;
  }
}

// Returns what of `data` the disk has not taken: on a full one that may be a part.
function write(fd, data) {
  let done = 0;
  attempt(() => {
    while (done < data.length) done += fs.writeSync(fd, data, done);
  });
  return data.subarray(done);
}

function writeExit(how) {
  return attempt(() => {
    fs.writeFileSync(`${directory}/.exit`, JSON.stringify(how) + "\n", { mode: 0o644 });
    fs.renameSync(`${directory}/.exit`, `${directory}/exit`);
  });
}

// What the agent has said and `out` does not have: while there is any, the agent waits.
let held = Buffer.alloc(0);
let isStalled = false;
// How the agent's process ended, and how its journal is to end: with no more of its output than is held.
let ended = null;
let ending = null;
let lastWords = null;

const agent = spawn(program, args, { uid: Number(uid), gid: Number(gid), cwd, stdio: ["pipe", "pipe", "pipe"] });
agent.on("error", (error) => end({ start: false, error: `it could not be started: ${error.message}` }));
agent.on("close", (code, signal) => end({ code, signal }));
agent.on("exit", (code, signal) => {
  ended = { code, signal };
  awaitLastWords();
});
agent.stdin.on("error", () => {});
let outSize = fs.fstatSync(out).size;
agent.stdout.on("data", (data) => {
  if (ending !== null) return;
  held = Buffer.concat([held, data]);
  // The piece that exceeds the limit, too: by the size of the file the host sees that it was exceeded.
  outSize += data.length;
  if (outSize > OUT_LIMIT) {
    agent.kill("SIGKILL");
    end({ error: `it wrote more than ${OUT_LIMIT} bytes` });
  } else {
    settle();
  }
});
let errSize = fs.fstatSync(err).size;
agent.stderr.on("data", (data) => {
  // Of a log without end the last part is worth keeping.
  if (errSize + data.length > ERR_LIMIT && attempt(() => fs.ftruncateSync(err, 0))) errSize = 0;
  // A log is not worth an agent that waits: what the disk does not take is dropped.
  errSize += data.length - write(err, data).length;
});

function end(how) {
  ending ??= how;
  settle();
}

// What has ended may have left more in its pipe than was read before the disk was full.
function awaitLastWords() {
  clearTimeout(lastWords);
  if (ended !== null && held.length === 0) lastWords = setTimeout(end, LAST_WORDS_MS, ended);
}

// Writes what is held, then the end. What the disk does not take is tried again at the next look.
function settle() {
  held = write(out, held);
  if (ending !== null) {
    if (held.length === 0 && writeExit(ending)) process.exit(0);
  } else if (held.length > 0) {
    // At each look: Node itself resumes it when the agent's process ends.
    agent.stdout.pause();
    clearTimeout(lastWords);
    isStalled = true;
  } else if (isStalled) {
    isStalled = false;
    agent.stdout.resume();
    awaitLastWords();
  }
}

// Bytes of `in` that were handed on: always whole lines, since a line may be mended before it is complete.
let position = 0;
let waiting = false;

function forward() {
  while (!waiting) {
    let size = PIECE;
    let line = -1;
    let data = Buffer.alloc(0);
    for (;;) {
      const buffer = Buffer.allocUnsafe(size);
      let read = 0;
      attempt(() => (read = fs.readSync(input, buffer, 0, size, position)));
      data = buffer.subarray(0, read);
      line = data.lastIndexOf(10);
      if (line >= 0 || data.length < size) break;
      size *= 2;
    }
    if (line < 0) return;
    position += line + 1;
    if (!agent.stdin.write(data.subarray(0, line + 1))) {
      waiting = true;
      agent.stdin.once("drain", () => {
        waiting = false;
        forward();
      });
    }
  }
}

// There may be as many watches already as a user may have: then each look finds what is new.
try {
  fs.watch(`${directory}/in`, forward).on("error", () => {});
} catch {}
setInterval(() => {
  forward();
  settle();
}, LOOK_EVERY_MS);
forward();
