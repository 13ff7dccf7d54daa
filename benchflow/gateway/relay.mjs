// Brings a sandbox's calls to the gateway: a port of its loopback that is, byte for byte, a socket in a mounted directory.
//
//   node relay.mjs PORT SOCKET
//
// Runs as root in the sandbox. It knows nothing of what it carries, reaches nothing but that socket, and does not end by
// itself. While the gateway is being started again the socket refuses: whoever calls then waits.

import net from "node:net";

const [port, path] = [Number(process.argv[2]), process.argv[3]];
const PATIENCE_MS = 60_000;
const LOOK_EVERY_MS = 50;
// Nobody listens, not yet there, too many at once.
const PASSING = new Set(["ECONNREFUSED", "ENOENT", "EAGAIN"]);

function say(what) {
  process.stderr.write(`${new Date().toISOString()} ${what}\n`);
}

function join(client, socket) {
  // Each end is passed on by itself: one side may be done with speaking and still listen.
  client.pipe(socket);
  socket.pipe(client);
  client.on("close", () => socket.destroy());
  socket.on("close", () => client.destroySoon());
}

function connect(client, deadline) {
  if (client.destroyed) return;
  const socket = net.connect({ path, allowHalfOpen: true });
  socket.once("connect", () => (client.destroyed ? socket.destroy() : join(client, socket)));
  socket.on("error", (error) => {
    if (PASSING.has(error.code) && Date.now() < deadline) {
      setTimeout(connect, LOOK_EVERY_MS, client, deadline);
    } else {
      if (PASSING.has(error.code)) say(`${path}: ${error.message}`);
      client.destroy();
    }
  });
}

function listen(host, needed) {
  const server = net.createServer({ allowHalfOpen: true, pauseOnConnect: true, noDelay: true }, (client) => {
    client.on("error", () => client.destroy());
    connect(client, Date.now() + PATIENCE_MS);
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
