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

const open = (name) => fs.openSync(`${directory}/${name}`, "a", 0o600);
const out = open("out");
const err = open("err");
const input = fs.openSync(`${directory}/in`, "a+", 0o600);

function writeAll(fd, data) {
  for (let done = 0; done < data.length; ) done += fs.writeSync(fd, data, done);
}

function end(how) {
  fs.writeFileSync(`${directory}/.exit`, JSON.stringify(how) + "\n", { mode: 0o644 });
  fs.renameSync(`${directory}/.exit`, `${directory}/exit`);
  process.exit(0);
}

const agent = spawn(program, args, { uid: Number(uid), gid: Number(gid), cwd, stdio: ["pipe", "pipe", "pipe"] });
agent.on("error", (error) => end({ start: false, error: `it could not be started: ${error.message}` }));
agent.on("close", (code, signal) => end({ code, signal }));
agent.on("exit", (code, signal) => setTimeout(() => end({ code, signal }), LAST_WORDS_MS));
agent.stdin.on("error", () => {});
let outSize = fs.fstatSync(out).size;
agent.stdout.on("data", (data) => {
  // The piece that exceeds the limit, too: by the size of the file the host sees that it was exceeded.
  writeAll(out, data);
  outSize += data.length;
  if (outSize <= OUT_LIMIT) return;
  agent.kill("SIGKILL");
  end({ error: `it wrote more than ${OUT_LIMIT} bytes` });
});
let errSize = fs.fstatSync(err).size;
agent.stderr.on("data", (data) => {
  // Of a log without end the last part is worth keeping.
  if (errSize + data.length > ERR_LIMIT) {
    fs.ftruncateSync(err, 0);
    errSize = 0;
  }
  writeAll(err, data);
  errSize += data.length;
});

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
      data = buffer.subarray(0, fs.readSync(input, buffer, 0, size, position));
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

fs.watch(`${directory}/in`, forward);
setInterval(forward, LOOK_EVERY_MS);
forward();
