// Tells which TCP ports of a sandbox somebody listens on, and who. `ports.py` is the same in Python.

import fs from "node:fs";
import { run } from "./shared.mjs";

const LISTENS = "0A";

function ports(request) {
  const sockets = new Map();
  for (const table of ["/proc/net/tcp", "/proc/net/tcp6"]) {
    if (!fs.existsSync(table)) continue;
    for (const line of fs.readFileSync(table, "utf8").trim().split("\n").slice(1)) {
      const words = line.trim().split(/\s+/);
      const port = parseInt(words[1].slice(words[1].lastIndexOf(":") + 1), 16);
      if (words[3] === LISTENS && request.ports.includes(port)) sockets.set(`socket:[${words[9]}]`, port);
    }
  }
  const found = Object.fromEntries([...sockets.values()].map((port) => [port, ""]));
  for (const pid of sockets.size ? fs.readdirSync("/proc").filter((name) => /^\d+$/.test(name)) : []) {
    try {
      for (const fd of fs.readdirSync(`/proc/${pid}/fd`)) name(pid, fd, sockets, found);
    } catch {
      // It ended, or is not for us to look into.
    }
  }
  return { ports: found };
}

function name(pid, fd, sockets, found) {
  try {
    const port = sockets.get(fs.readlinkSync(`/proc/${pid}/fd/${fd}`));
    if (!port) return;
    const command = fs.readFileSync(`/proc/${pid}/cmdline`, "utf8").replaceAll("\0", " ").trim();
    found[port] = `${command.slice(0, 120)} (pid ${pid})`;
  } catch {
    // It was closed meanwhile.
  }
}

await run(ports);
