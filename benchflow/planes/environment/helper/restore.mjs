// Puts the databases of a snapshot back, and proves it. `restore.py` is the same in Python, and says why.

import fs from "node:fs";
import { basename, dirname } from "node:path";
import { backup } from "node:sqlite";
import { HelperError, about, alone, connect, digest, failureOf, kindOf, real, run, statusOf, sync } from "./shared.mjs";

const SIDECARS = ["-wal", "-shm", "-journal"];
const ATTEMPT = 2.0;
const ALL_PAGES = 0x7fffffff;

async function restore(request) {
  const { snapshot: taken, patience, fence_table: table } = request;
  if (!statusOf(taken.directory))
    throw new HelperError("changed", `the snapshot '${taken.name}' is not in the sandbox`, taken.directory);
  return await alone(dirname(taken.directory), request.wait, async () => {
    const plan = taken.files.map((file) => ({ file, place: real(file.path, request.foreign) }));
    if (request.live) await putLive(plan, taken.directory, patience);
    else put(plan, taken.directory);
    for (const { file, place } of plan) about(file.path, () => prove(file, place, table, taken.fence, patience));
    for (const { file, place } of plan) about(file.path, () => removeFence(file, place, table, patience));
    return {};
  });
}

function changed(file) {
  return new HelperError("changed", "its copy in the snapshot is not the one that was taken", file.path);
}

function put(plan, base) {
  refuseOpen(plan, "busy");
  const made = new Map();
  try {
    for (const { file, place } of plan.filter((each) => each.file.present))
      about(file.path, () => {
        fs.mkdirSync(dirname(place), { recursive: true });
        made.set(place, `${dirname(place)}/.${basename(place)}.benchflow`);
        duplicate(file, `${base}/${file.file}`, made.get(place));
      });
    for (const { file, place } of plan)
      about(file.path, () => {
        for (const name of SIDECARS) fs.rmSync(place + name, { force: true });
        if (file.present) fs.renameSync(made.get(place), place);
        else fs.rmSync(place, { force: true });
        if (statusOf(dirname(place))) sync(dirname(place));
      });
  } catch (error) {
    for (const part of made.values()) fs.rmSync(part, { force: true });
    throw error;
  }
}

function duplicate(file, source, target) {
  if (!statusOf(source)) throw changed(file);
  fs.rmSync(target, { force: true });
  fs.copyFileSync(source, target, fs.constants.COPYFILE_FICLONE | fs.constants.COPYFILE_EXCL);
  fs.chownSync(target, file.uid, file.gid);
  fs.chmodSync(target, file.mode);
  sync(target);
  if (digest(target) !== file.sha256) throw changed(file);
}

async function putLive(plan, base, patience) {
  const isThere = ({ file, place }) => file.present && statusOf(place);
  const there = plan.filter(isThere);
  const away = plan.filter((each) => !isThere(each));
  for (const { file } of there) {
    const source = `${base}/${file.file}`;
    if (!statusOf(source) || digest(source) !== file.sha256) throw changed(file);
  }
  refuseOpen(away, "live");
  for (const { file, place } of there) {
    try {
      const given = connect(`${base}/${file.file}`, 0, "immutable=1");
      const waits = connect(place, Math.max(ATTEMPT, patience));
      waits.exec("BEGIN IMMEDIATE");
      waits.close();
      const deadline = Date.now() + patience * 1000;
      // It is asked between two tries, and not when all has been copied.
      const progress = () => {
        if (Date.now() > deadline) throw new HelperError("busy", "a process holds the database", file.path);
      };
      await backup(given, place, { rate: ALL_PAGES, progress });
      given.close();
      fs.chownSync(place, file.uid, file.gid);
      fs.chmodSync(place, file.mode);
    } catch (error) {
      throw failureOf(error, file.path);
    }
  }
  put(away, base);
}

function prove(file, place, table, fence, patience) {
  if (!file.present) {
    if (statusOf(place)) throw new HelperError("state", "is there again after it was removed", file.path);
    return;
  }
  const seen = connect(place, patience);
  let told = [];
  try {
    told = seen.prepare(`SELECT nonce FROM ${table}`).all();
  } catch (error) {
    if (!error.message.includes("no such table")) throw error;
  } finally {
    seen.close();
  }
  if (told.length !== 1 || told[0].nonce !== fence)
    throw new HelperError("state", "what was put in place is not what a process sees there", file.path);
}

function removeFence(file, place, table, patience) {
  if (!file.present) return;
  const world = connect(place, patience);
  try {
    world.exec(`DROP TABLE ${table}`);
  } finally {
    world.close();
  }
}

function refuseOpen(plan, kind) {
  const names = new Map();
  for (const { file, place } of plan) for (const name of ["", ...SIDECARS]) names.set(place + name, file.path);
  const holder = findHolder(names);
  if (holder) throw new HelperError(kind, `process ${holder.process} has it open`, holder.path);
  for (const { file, place } of plan) {
    if (!statusOf(place)?.isFile()) continue;
    const probe = connect(place, 0.2);
    try {
      probe.exec("PRAGMA locking_mode=EXCLUSIVE");
      probe.exec("BEGIN EXCLUSIVE");
    } catch (error) {
      if (kindOf(error) === "busy") throw new HelperError(kind, "a process has it open", file.path);
    } finally {
      probe.close();
    }
  }
}

function findHolder(names) {
  const files = new Map();
  for (const [place, path] of names) {
    const status = statusOf(place);
    if (status) files.set(`${status.dev} ${status.ino}`, path);
  }
  for (const pid of fs.readdirSync("/proc").filter((name) => /^\d+$/.test(name) && Number(name) !== process.pid)) {
    for (const fd of listed(`/proc/${pid}/fd`)) {
      try {
        const link = `/proc/${pid}/fd/${fd}`;
        const leads = fs.readlinkSync(link);
        let path = names.get(leads.replace(/ \(deleted\)$/, ""));
        if (path === undefined && leads.startsWith("/")) {
          const status = fs.statSync(link);
          path = files.get(`${status.dev} ${status.ino}`);
        }
        if (path !== undefined) {
          const command = fs.readFileSync(`/proc/${pid}/cmdline`, "utf8").replaceAll("\0", " ").trim();
          return { path, process: `${pid} (${command.slice(0, 120)})` };
        }
      } catch {
        // It ended, or closed the file, meanwhile.
      }
    }
  }
  return null;
}

function listed(directory) {
  try {
    return fs.readdirSync(directory);
  } catch {
    return [];
  }
}

await run(restore);
