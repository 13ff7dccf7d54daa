"""Programs that try, inside a local sandbox, what must not be possible there; what they print is one JSON value."""

from __future__ import annotations

# $1...: paths that are looked for by every way that might lead to them.
LOOK = r"""
import json, os, sys
found = []
for path in sys.argv[1:]:
    for way in ("", "/proc/1/root", "/proc/self/root", "/proc/1/cwd", "/usr/..", "/usr/bin/../.."):
        place = way + path
        parent, name = os.path.split(place)
        try:
            with open(place, "rb") as file:
                found.append(f"{place}: {file.read(100)!r}")
        except OSError:
            pass
        if os.path.lexists(place) or (os.path.isdir(parent) and name in os.listdir(parent)):
            found.append(place)
print(json.dumps(found))
"""

# $1 $2 ...: addresses and ports that are called; a datagram is sent to each, too.
CONNECT = r"""
import json, socket, sys
from concurrent.futures import ThreadPoolExecutor
def reach(place):
    address, port = place
    try:
        socket.create_connection(place, 0.5).close()
        reached = True
    except OSError:
        reached = False
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as datagrams:
        try:
            datagrams.sendto(b"hello", (address, port))
        except OSError:
            pass
    return reached
places = list(zip(sys.argv[1::2], map(int, sys.argv[2::2])))
with ThreadPoolExecutor(16) as threads:
    print(json.dumps([place for place, reached in zip(places, threads.map(reach, places)) if reached]))
"""

# On the host: a worker that goes on starting commands in the sandbox of a specification ($1).
WORKER = r"""
import asyncio, json, sys
from benchflow.contracts.sandbox import SandboxSpec
from benchflow.planes.sandbox.driven.driven_provider import DrivenProvider
from benchflow.planes.sandbox.driven.driven_provider import DrivenProvider
from benchflow.planes.sandbox.local.local_driver import LocalDriver

async def main():
    provider = DrivenProvider(LocalDriver())
    spec = SandboxSpec.model_validate_json(sys.argv[1])
    sandbox = await provider.start(spec, host_id="host", queue="queue")
    print("started", flush=True)
    n = 0
    while True:
        await asyncio.gather(
            sandbox.exec(["true"], env={"SEEN": sys.argv[2]}),
            sandbox.exec(["true"], user=61000, cwd="/"),
            sandbox.exec_once(f"n{n}", ["true"]),
            sandbox.write_file("/written", "x"),
            sandbox.download("/etc/hostname", __import__("pathlib").Path(sys.argv[3])),
        )
        n += 1

asyncio.run(main())
"""

# $1, $2: seconds at least, and at most, where the last text was not seen by then, or too few memories; $3...: texts,
# written backwards, that are looked for in all that /proc shows of other processes.
WATCH = r"""
import json, os, re, sys, time
wanted = [text[::-1].encode() for text in sys.argv[3:]]
own = str(os.getpid())
found = {}
memories = 0
least, most = (time.monotonic() + float(seconds) for seconds in sys.argv[1:3])
def looks_on():
    seen = wanted[-1].decode() in found and memories > 20
    return time.monotonic() < (least if seen else most)
while looks_on():
    for pid in os.listdir("/proc"):
        if not pid.isdigit() or pid == own:
            continue
        for name in ("environ", "cmdline", "stat", "mem", "fd", "comm"):
            place = f"/proc/{pid}/{name}"
            try:
                if name == "fd":
                    said = "\n".join(os.readlink(f"{place}/{fd}") for fd in os.listdir(place)).encode()
                elif name == "mem":
                    maps = open(f"/proc/{pid}/maps").read()
                    said = b""
                    with open(place, "rb", buffering=0) as memory:
                        for line in maps.splitlines():
                            begin, end = (int(x, 16) for x in line.split()[0].split("-"))
                            if " rw" in line and end - begin < 1 << 23:
                                memory.seek(begin)
                                said += memory.read(end - begin)
                    memories += 1
                else:
                    said = open(place, "rb").read()
            except (OSError, ValueError, OverflowError):
                continue
            for text in wanted:
                if text in said:
                    found.setdefault(text.decode(), name)
print(json.dumps([found, memories]))
"""

# On the host: who may use a key of this process's session, by inheritance and by its keyring's number.
KEYRINGS = r"""
import asyncio, json, subprocess, sys
from benchflow.contracts.images import ImageRef
from benchflow.contracts.sandbox import SandboxSpec
from benchflow.planes.sandbox.driven.driven_provider import DrivenProvider
from benchflow.planes.sandbox.local.local_driver import LocalDriver

CALLS = '''
import ctypes, json, os, sys
libc = ctypes.CDLL(None)
ADD, REQUEST, CONTROL = (248, 249, 250) if os.uname().machine == "x86_64" else (217, 218, 219)
SESSION, JOIN, FIND_RING, LINK = -3, 1, 0, 8
def asked(ring):
    inherited = libc.syscall(REQUEST, b"user", b"engines-key", None, 0) > 0
    # Whoever may link a keyring into its own session's has all that is in it.
    libc.syscall(CONTROL, JOIN, None)
    return [inherited, libc.syscall(CONTROL, LINK, ring, SESSION) == 0]
'''
exec(CALLS)

async def main():
    libc.syscall(CONTROL, JOIN, b"engine")
    libc.syscall(ADD, b"user", b"engines-key", b"secret", 6, SESSION)
    ring = libc.syscall(CONTROL, FIND_RING, SESSION, 0)
    ask = ["python3", "-c", CALLS + f"print(json.dumps(asked({ring})))"]
    said = {"here": json.loads(subprocess.run(ask, capture_output=True).stdout)}
    provider = DrivenProvider(LocalDriver())
    spec = SandboxSpec(name=sys.argv[1], image=ImageRef(reference="host"), network_mode="no-network")
    sandbox = await provider.start(spec, host_id="", queue="")
    try:
        for user in (0, 61000):
            said[str(user)] = json.loads((await sandbox.exec(ask, user=user, cwd="/")).stdout)
    finally:
        await provider.remove(sys.argv[1])
        await provider.sweep("")
        await provider.close()
    print(json.dumps(said))

asyncio.run(main())
"""

# What each attempt was answered: an error's number, or 0 where it succeeded.
ATTEMPTS = r"""
import ctypes, ctypes.util, json, os, platform, resource, socket, stat, struct, sys, time
libc = ctypes.CDLL(None, use_errno=True)
NEW = {"open_tree": 428, "fsopen": 430, "mount_setattr": 442}
# Numbers on x86-64 and on ARM64.
OLD = {"init_module": (175, 105), "delete_module": (176, 106), "bpf": (321, 280), "perf_event_open": (298, 241),
       "swapon": (167, 224), "acct": (163, 89),
       "open_by_handle_at": (304, 265), "syslog": (103, 116), "io_uring_setup": (425, 425), "clone3": (435, 435),
       "kcmp": (312, 272), "userfaultfd": (323, 282), "fanotify_init": (300, 262), "personality": (135, 92),
       "keyctl": (250, 219), "move_pages": (279, 239), "later": (470, 470), "ptrace": (101, 117),
       "ioctl": (16, 29), "fcntl": (72, 25), "process_vm_readv": (310, 270)}

def call(name, *arguments):
    number = NEW.get(name) or OLD[name][platform.machine() == "aarch64"]
    if libc.syscall(number, *arguments) < 0:
        raise OSError(ctypes.get_errno(), name)

def call_by(number, *arguments):
    if libc.syscall(ctypes.c_long(number), *arguments) < 0:
        raise OSError(ctypes.get_errno(), str(number))

def libc_call(name, *arguments):
    if getattr(libc, name)(*arguments) < 0:
        raise OSError(ctypes.get_errno(), name)

def write(path, text):
    fd = os.open(path, os.O_WRONLY)
    try:
        os.write(fd, text.encode())
    finally:
        os.close(fd)

def mount(source, target, kind, flags):
    libc_call("mount", source, target, kind, ctypes.c_ulong(flags), None)

def fresh():
    os.makedirs(f"/tmp/{os.getpid()}", exist_ok=True)
    return f"/tmp/{os.getpid()}"

def cloned(flags):
    libc_call("unshare", flags)

def joined(name):
    fd = os.open(f"/proc/1/ns/{name}", os.O_RDONLY)
    libc_call("setns", fd, 0)

def address():
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
        import fcntl
        # SIOCSIFADDR
        fcntl.ioctl(sock, 0x8916, struct.pack("16sHH4s8x", b"lo", socket.AF_INET, 0, bytes([10, 9, 8, 7])))

def leased(command):
    # A plain file of the caller's own, open once.
    fd = os.open(f"{fresh()}/l{os.getuid()}", os.O_CREAT | os.O_RDWR)
    call("fcntl", fd, ctypes.c_ulong(command), 1)

def typed(command):
    master, terminal = os.openpty()
    os.setsid()
    libc_call("ioctl", terminal, 0x540E, 0)
    call("ioctl", terminal, ctypes.c_ulong(command), b"x")

def by_another_abi(number, first, second):
    # A 64-bit program may make a call of the 32-bit ABI.
    import mmap
    if platform.machine() != "x86_64":
        raise OSError(38, "only there")
    # push rbx; mov eax,edi; mov ebx,esi; mov ecx,edx; xor edx,edx; int 0x80; pop rbx; ret
    code = mmap.mmap(-1, 4096, prot=7)
    code.write(bytes.fromhex("5389f889f389d131d2cd805bc3"))
    address = ctypes.addressof(ctypes.c_char.from_buffer(code))
    answer = ctypes.CFUNCTYPE(ctypes.c_int, *[ctypes.c_int] * 3)(address)(number, first, second)
    if answer < 0:
        raise OSError(-answer, "int 0x80")

def of_the_first(name, flags=os.O_RDONLY):
    fd = os.open(f"/proc/1/{name}", flags)
    os.read(fd, 1)

class Vector(ctypes.Structure):
    _fields_ = [("base", ctypes.c_void_p), ("length", ctypes.c_size_t)]

def memory_of_the_first():
    own = ctypes.create_string_buffer(8)
    here, there = Vector(ctypes.addressof(own), 8), Vector(0x400000, 8)
    one, none = ctypes.c_ulong(1), ctypes.c_ulong(0)
    call("process_vm_readv", 1, ctypes.byref(here), one, ctypes.byref(there), one, none)

MS_BIND, MS_REMOUNT, MS_MOVE = 4096, 32, 8192

attempts = {
    "mount a tmpfs": lambda: mount(b"x", fresh().encode(), b"tmpfs", 0),
    "mount proc": lambda: mount(b"proc", fresh().encode(), b"proc", 0),
    "mount control groups": lambda: mount(b"x", fresh().encode(), b"cgroup2", 0),
    "mount older control groups": lambda: libc_call(
        "mount", b"x", fresh().encode(), b"cgroup", ctypes.c_ulong(0), b"memory"),
    "mount an overlay": lambda: mount(b"x", fresh().encode(), b"overlay", 0),
    "bind the root": lambda: mount(b"/", fresh().encode(), None, MS_BIND),
    "remount sysctls writable": lambda: mount(b"x", b"/proc/sys", None, MS_BIND | MS_REMOUNT),
    "remount the root with devices": lambda: mount(b"x", b"/", None, MS_REMOUNT),
    "move a mount": lambda: mount(b"/proc/sys", fresh().encode(), None, MS_MOVE),
    "unmount the sysctls' cover": lambda: libc_call("umount2", b"/proc/sys", 2),
    "unmount the cover of control groups": lambda: libc_call("umount2", b"/sys/fs/cgroup", 2),
    "unmount the root": lambda: libc_call("umount2", b"/", 2),
    "copy the mounts": lambda: call("open_tree", -100, b"/", 0x8001),
    "open a file system": lambda: call("fsopen", b"tmpfs", 0),
    "change a mount": lambda: call("mount_setattr", -100, b"/", 0, ctypes.create_string_buffer(32), 32),
    "pivot the root": lambda: libc_call("pivot_root", b"/tmp", b"/tmp"),
    "leave the user namespace": lambda: cloned(0x10000000),
    "leave the mount namespace": lambda: cloned(0x00020000),
    "leave the network namespace": lambda: cloned(0x40000000),
    "leave the pid namespace": lambda: cloned(0x20000000),
    "leave the host name's namespace": lambda: cloned(0x04000000),
    "leave the control group namespace": lambda: cloned(0x02000000),
    "leave the namespaces with a user's": lambda: cloned(0x10000000 | 0x00020000),
    "join the mount namespace anew": lambda: joined("mnt"),
    "join the network namespace anew": lambda: joined("net"),
    "join the time namespace": lambda: joined("time"),
    "make the disk's node": lambda: os.mknod(f"{fresh()}/disk", stat.S_IFBLK | 0o600, os.makedev(254, 0)),
    "make a loop device's node": lambda: os.mknod(f"{fresh()}/loop", stat.S_IFBLK | 0o600, os.makedev(7, 0)),
    "make the memory's node": lambda: os.mknod(f"{fresh()}/mem", stat.S_IFCHR | 0o600, os.makedev(1, 1)),
    "make a node for FUSE": lambda: os.mknod("/dev/fuse", stat.S_IFCHR | 0o600, os.makedev(10, 229)),
    "make a whiteout": lambda: os.mknod(f"{fresh()}/w", stat.S_IFCHR | 0o600, 0),
    "mark a directory for the overlay": lambda: os.setxattr(fresh(), "trusted.overlay.opaque", b"y"),
    "give a file capabilities": lambda: (open(f"{fresh()}/f", "w").close(), os.setxattr(
        f"{fresh()}/f", "security.capability", struct.pack("<IIIII", 0x02000001, 1 << 21, 0, 0, 0))),
    "write the host name's sysctl": lambda: write("/proc/sys/kernel/hostname", "changed"),
    "write the core pattern": lambda: write("/proc/sys/kernel/core_pattern", "|/tmp/x"),
    "write the limit of namespaces": lambda: write("/proc/sys/user/max_user_namespaces", "10"),
    "write forwarding": lambda: write("/proc/sys/net/ipv4/ip_forward", "1"),
    "press a system request": lambda: write("/proc/sysrq-trigger", "h"),
    "write an interrupt's affinity": lambda: write("/proc/irq/default_smp_affinity", "1"),
    "write in sysfs": lambda: write("/sys/kernel/profiling", "0"),
    "become less likely to be killed": lambda: write("/proc/self/oom_score_adj", "-999"),
    "set the host name": lambda: libc_call("sethostname", b"changed", 7),
    "set the domain name": lambda: libc_call("setdomainname", b"changed", 7),
    "set the clock": lambda: time.clock_settime(time.CLOCK_REALTIME, time.time() + 3600),
    "adjust the clock": lambda: libc_call("adjtimex", (ctypes.c_int * 64)(1)),
    "load a module": lambda: call("init_module", b"xxxx", 4, b""),
    "unload a module": lambda: call("delete_module", b"no_such_module", 0),
    "load a BPF program": lambda: call("bpf", 5, (ctypes.c_uint64 * 16)(1), 128),
    "watch the kernel": lambda: call("perf_event_open", (ctypes.c_uint32 * 32)(1, 128), -1, 0, -1, 0),
    "swap to a file": lambda: call("swapon", b"/etc/hostname", 0),
    "account for processes": lambda: call("acct", b"/etc/hostname"),
    "clear the kernel's log": lambda: call("syslog", 5, None, 0),
    "open a file by its handle": lambda: call(
        "open_by_handle_at", os.open("/", os.O_RDONLY), struct.pack("IiQ", 8, 1, 2), 0),
    "capture packets": lambda: socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(3)),
    "send raw packets": lambda: socket.socket(socket.AF_INET, socket.SOCK_RAW, socket.IPPROTO_ICMP),
    "change an interface": address,
    "reach the hypervisor": lambda: socket.socket(socket.AF_VSOCK, socket.SOCK_STREAM),
    "reach the hypervisor by a pair": lambda: socket.socketpair(socket.AF_VSOCK, socket.SOCK_STREAM),
    "use the kernel's ciphers": lambda: socket.socket(socket.AF_ALG, socket.SOCK_SEQPACKET),
    "have a protocol loaded": lambda: socket.socket(socket.AF_INET, socket.SOCK_STREAM, 132),
    "listen to the kernel's events": lambda: socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, 15),
    "set up io_uring": lambda: call("io_uring_setup", 4, ctypes.create_string_buffer(256)),
    "start a process unseen by a filter": lambda: call("clone3", ctypes.create_string_buffer(64), 8),
    "compare kernel objects": lambda: call("kcmp", os.getpid(), os.getpid(), 0, 0, 0),
    "handle page faults": lambda: call("userfaultfd", 1),
    "watch file systems": lambda: call("fanotify_init", 0x200, 0),
    "make all memory executable": lambda: call("personality", 0x0400000),
    "ask for a key": lambda: call("keyctl", 0, -3, 0),
    "move memory between nodes": lambda: call("move_pages", 0, 0, None, None, None, 0),
    "use a call that nobody has judged": lambda: call("later", 0),
    "use a call of the x32 ABI": lambda: call_by(0x40000000 + 41, socket.AF_VSOCK, 1, 0),
    "reach the hypervisor by 32 bits": lambda: by_another_abi(359, socket.AF_VSOCK, 1),
    "set up io_uring by 32 bits": lambda: by_another_abi(425, 4, 0),
    "take any socket by 32 bits": lambda: by_another_abi(102, 1, 0),
    "leave namespaces by 32 bits": lambda: by_another_abi(310, 0x10000000, 0),
    "keep a reader waiting": lambda: leased(1024),
    "keep a reader waiting by the upper half": lambda: leased(1 << 32 | 1024),
    "type into a terminal": lambda: typed(0x5412),
    "type into a terminal by the upper half": lambda: typed(1 << 32 | 0x5412),
    "load a line discipline": lambda: typed(0x5423),
    "attach to the first process": lambda: call("ptrace", 16, 1, 0, 0),
    "seize the first process": lambda: call("ptrace", 0x4206, 1, 0, 0),
    "copy the first process's memory": memory_of_the_first,
    **{f"read the first process's {name}": lambda name=name: of_the_first(name)
       for name in ("environ", "maps", "smaps", "auxv", "stack", "syscall", "fd/0", "mem", "exe", "root/etc/passwd")},
    "open the first process's memory for writing": lambda: os.open("/proc/1/mem", os.O_RDWR),
    **{f"follow the first process's {name}": lambda name=name: os.readlink(f"/proc/1/{name}")
       for name in ("exe", "cwd", "root", "fd/0", "ns/mnt", "ns/user")},
    "raise the limit of locked memory": lambda: resource.setrlimit(
        resource.RLIMIT_MEMLOCK, (resource.RLIM_INFINITY, resource.RLIM_INFINITY)),
    "raise the limit of files": lambda: resource.setrlimit(resource.RLIMIT_NOFILE, (1 << 30, 1 << 30)),
    "run before others": lambda: os.nice(-10),
    "run in real time": lambda: os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(10)),
    "make a file that cannot be changed": lambda: (open(f"{fresh()}/i", "w").close(), __import__("fcntl").ioctl(
        os.open(f"{fresh()}/i", os.O_RDONLY), 0x40086602, struct.pack("l", 0x10))),
}
said = {}
for name, attempt in attempts.items():
    pid = os.fork()
    if pid == 0:
        code = 0
        try:
            attempt()
        except (OSError, ValueError) as error:
            code = getattr(error, "errno", None) or 1
        os._exit(code)
    said[name] = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
print(json.dumps(said))
"""

# The kernel's files that take what is written to them.
KERNEL_FILES = r"""
import json, os, stat
found = []
for top in ("/proc", "/sys"):
    for directory, names, files in os.walk(top):
        if directory == "/proc":
            names[:] = [name for name in names if not name.isdigit() and name not in ("self", "thread-self")]
        for name in files:
            path = os.path.join(directory, name)
            try:
                fd = os.open(path, os.O_WRONLY | os.O_NONBLOCK)
            except OSError:
                continue
            try:
                # Where nothing can be written, that is said of nothing, too.
                os.write(fd, b"")
                if os.fstat(fd).st_rdev != os.makedev(1, 3):
                    found.append(path)
            except OSError:
                pass
            os.close(fd)
print(json.dumps(found))
"""

# $1...: files that are changed and removed in every way, with the directories that they are in.
RAMPAGE = r"""
import contextlib, ctypes, json, mmap, os, shutil, sys
libc = ctypes.CDLL(None)
for path in sys.argv[1:]:
    reading = os.open(path, os.O_RDONLY)
    steps = [
        lambda: os.close(os.open(f"/proc/self/fd/{reading}", os.O_RDWR)),
        lambda: mmap.mmap(os.open(path, os.O_RDWR), 0, mmap.MAP_SHARED).__setitem__(0, 1),
        lambda: open(path, "ab").write(b"changed"),
        lambda: open(f"/proc/1/root{path}", "ab").write(b"changed"),
        lambda: os.chown(path, 61000, 61000),
        lambda: os.chmod(path, 0o4777),
        lambda: os.fchmod(reading, 0o777),
        lambda: os.utime(path, (1, 1)),
        lambda: os.setxattr(path, "user.changed", b"x"),
        lambda: os.link(path, path + "-link"),
        lambda: open(path + "-link", "ab").write(b"changed"),
        lambda: os.truncate(path, 0),
        lambda: os.rename(path, path + "-moved"),
        lambda: os.remove(path + "-moved"),
        lambda: open(path, "w").write("changed"),
        lambda: os.chmod(os.path.dirname(path), 0o777),
    ]
    done = 0
    for step in steps:
        with contextlib.suppress(OSError):
            step()
            done += 1
    if done < len(steps) - 4:
        sys.exit(f"only {done} steps could be done to {path}")
for directory in sorted({os.path.dirname(path) for path in sys.argv[1:]}):
    shutil.rmtree(directory, ignore_errors=True)
    os.makedirs(directory, exist_ok=True)
    open(directory + "/added", "w").close()
print(json.dumps(sorted(os.listdir("/usr/bin"))))
"""

# A program that says what its caller would like to hear.
LIAR = """#!/usr/local/lying/python -IS
import os, sys
os.write(1, b"1\\n")
sys.exit(0)
"""

# $1: a program that takes the place of all that the engine could be tempted to use.
LIARS = r"""
import os, shutil, sys
os.mkdir("/usr/local/lying")
shutil.copy(os.path.realpath("/usr/bin/python3"), "/usr/local/lying/python")
for name in "sh bash dash cat tar base64 head stat id test ls cp mv true sleep python3 python3.11 python env".split():
    for place in ("/usr/bin", "/usr/local/bin"):
        with open(f"{place}/.{name}", "w") as file:
            file.write(sys.argv[1])
        os.chmod(f"{place}/.{name}", 0o755)
        os.rename(f"{place}/.{name}", f"{place}/{name}")
"""

# $1: a file that ends it. Opens whatever the handles of processes that come into being lead to; tells of all that is a
# directory, or lies where nothing of the sandbox's own does, and of all that let themselves be attached to.
DOORS = r"""
import ctypes, json, os, stat, sys
libc = ctypes.CDLL(None)
own = {os.stat(place).st_dev for place in ("/", "/proc", "/dev", "/dev/shm", "/dev/pts", "/dev/mqueue", "/sys")}
before = set(os.listdir("/proc"))
found, looked = [], 0
while not os.path.exists(sys.argv[1]):
    for pid in set(os.listdir("/proc")) - before:
        if not pid.isdigit() or int(pid) == os.getpid():
            continue
        looked += 1
        for fd in range(16):
            try:
                door = os.open(f"/proc/{pid}/fd/{fd}", os.O_PATH)
            except OSError:
                continue
            status = os.fstat(door)
            if stat.S_ISDIR(status.st_mode):
                found.append([fd, os.readlink(f"/proc/self/fd/{door}")])
            os.close(door)
        for name in ("root", "cwd"):
            try:
                if os.stat(f"/proc/{pid}/{name}").st_dev not in own:
                    found.append([name, os.readlink(f"/proc/{pid}/{name}")])
            except OSError:
                pass
print(json.dumps([found, looked]))
"""
