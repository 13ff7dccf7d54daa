// Brings a sandbox's calls to the gateway: a port of its loopback that is, byte for byte, a socket in a mounted directory.
//
//   node relay.mjs PORT SOCKET
//
// Runs as root in the sandbox. It knows nothing of what it carries, reaches nothing but that socket, and does not end by
// itself. While no gateway runs the socket refuses. Whoever calls then waits for as long as that takes, be it a restart,
// a stopped stack or a full disk: a call that is broken off may cost the agent its turn, and a wait costs only time.

import net from "node:net";
import { PassThrough } from "node:stream";

const [port, path] = [Number(process.argv[2]), process.argv[3]];
const MIN_POLL_INTERVAL_MS = 50;
const MAX_POLL_INTERVAL_MS = 1000;
// How long a client is waited for that has ended its side: with that, nearly all have closed the connection. Those that
// leave during a long outage would otherwise pile up, and be asked for when it is over.
const HALF_CLOSED_TIMEOUT_MS = 60_000;
// Bytes of a request that are read before there is a gateway. The end of a client is seen behind its last byte only.
const MAX_HELD_BYTES = 1 << 20;
// Nobody listens, not yet there, too many at once.
const PASSING = new Set(["ECONNREFUSED", "ENOENT", "EAGAIN"]);

let isAway = false;

function say(what) {
  process.stderr.write(`${new Date().toISOString()} ${what}\n`);
}

function note(away, why) {
  // Once for each outage, however many wait.
  if (away !== isAway) say(away ? `${path}: ${why}; calls wait` : `${path}: connected again`);
  isAway = away;
}

function join(client, request, socket) {
  // Each end is passed on by itself: one side may be done with speaking and still listen.
  request.pipe(socket);
  socket.pipe(client);
  client.on("close", () => socket.destroy());
  socket.on("close", () => client.destroySoon());
}

function connect(client, request, wait) {
  if (client.destroyed) return;
  const socket = net.connect({ path, allowHalfOpen: true });
  socket.once("connect", () => {
    note(false);
    if (client.destroyed) socket.destroy();
    else join(client, request, socket);
  });
  socket.on("error", (error) => {
    if (PASSING.has(error.code)) {
      // Too many at once are no outage, and may be told of any number of times.
      if (error.code !== "EAGAIN") note(true, error.message);
      // Not the wall clock, which a host may set forward.
      if (performance.now() - request.endedAt < HALF_CLOSED_TIMEOUT_MS) {
        setTimeout(connect, wait, client, request, Math.min(2 * wait, MAX_POLL_INTERVAL_MS));
        return;
      }
    }
    client.destroy();
  });
}

function hold(client) {
  const request = new PassThrough({ highWaterMark: MAX_HELD_BYTES });
  request.endedAt = Infinity;
  client.on("end", () => (request.endedAt = performance.now()));
  client.pipe(request);
  return request;
}

function listen(host, needed) {
  const server = net.createServer({ allowHalfOpen: true, pauseOnConnect: true, noDelay: true }, (client) => {
    client.on("error", () => client.destroy());
    connect(client, hold(client), MIN_POLL_INTERVAL_MS);
  });
  server.on("error", (error) => {
    say(`${host}: ${error.message}`);
    if (needed && !server.listening) process.exit(1);
  });
  server.listen({ host, port, backlog: 1024 });
}

process.on("SIGHUP", () => {});
process.on("uncaughtException", (error) => say(`${error.stack}`));
listen("127.0.0.1", true);
listen("::1", false);
