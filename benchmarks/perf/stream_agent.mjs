// An agent that speaks ACP and says as much as it is told to, so that it is never what is being waited for.
//
// A prompt is JSON: {count, bytes, every_ms}: so many messages of so many bytes, at random moments that are `every_ms`
// apart on average, or as fast as they are taken. Each begins with the monotonic clock in nanoseconds at its writing.

import { createInterface } from "node:readline";
import { once } from "node:events";
import { setTimeout as sleep } from "node:timers/promises";

const BATCH = 64 * 1024;

const line = (message) => JSON.stringify({ jsonrpc: "2.0", ...message }) + "\n";

function update(filling) {
  const content = { type: "text", text: `${process.hrtime.bigint()} ${filling}` };
  return line({
    method: "session/update",
    params: { sessionId: "stream", update: { sessionUpdate: "agent_message_chunk", content } },
  });
}

async function speak({ count, bytes = 0, every_ms = 0 }) {
  const filling = "x".repeat(bytes);
  let batch = "";
  for (let number = 0; number < count; number += 1) {
    batch += update(filling);
    if (!every_ms && batch.length < BATCH) continue;
    if (!process.stdout.write(batch)) await once(process.stdout, "drain");
    batch = "";
    if (every_ms) await sleep(Math.random() * 2 * every_ms);
  }
  process.stdout.write(batch);
}

for await (const text of createInterface({ input: process.stdin })) {
  const { id, method, params } = JSON.parse(text);
  let result = {};
  if (method === "initialize") result = { protocolVersion: 1, agentCapabilities: {}, authMethods: [] };
  if (method === "session/new") result = { sessionId: "stream" };
  if (method === "session/prompt") {
    await speak(JSON.parse(params.prompt[0].text));
    result = { stopReason: "end_turn" };
  }
  if (id !== undefined) process.stdout.write(line({ id, result }));
}
