"""What hostile code does first: programs for a sandbox's Python, each with its arguments."""

FORK_BOMB = "import os\nwhile True:\n try: os.fork()\n except OSError: pass"
MEMORY_BOMB = "held = []\nwhile True: held.append(bytearray(b'x' * (1 << 20)))"
RESERVATION = "x = bytearray(80 << 30)\nfor i in range(0, len(x), 4096): x[i] = 1"
DISK_FILL = """
import os
for folder in ("/work", "/tmp", "/dev/shm", "/var/tmp", "/dev", "/root", "/"):
    total = 0
    try:
        with open(folder + "/fill", "wb", buffering=0) as file:
            while True: total += file.write(bytes(65536))
    except OSError as error:
        print(folder, total, error.errno)
"""
MANY_FILES = """
number = 0
try:
    while True: open(f"/work/{number}", "w").close(); number += 1
except OSError as error: print(number, error.errno)
"""
SECRETS = ("/proc/kcore", "/proc/kallsyms", "/proc/sysrq-trigger", "/dev/mem", "/dev/kmsg",
           "/sys/kernel/debug", "/proc/1/mem", "/etc/shadow")  # fmt: skip
READ_SECRETS = f"""
import os
for path in {SECRETS!r}:
    try: data = open(path, "rb").read(64)
    except OSError: data = b""
    print(path, len(data))
print("pids", *sorted(int(p) for p in os.listdir("/proc") if p.isdigit()))
"""
#: Arguments: a TCP port of the node that listens, an abstract Unix socket that does.
NETWORK = """
import socket, sys
print([name for _, name in socket.if_nameindex()])
def attempt(kind, address):
    with socket.socket(*kind) as s:
        s.settimeout(2)
        try: s.connect(address); print("connected", address)
        except OSError: pass
attempt((socket.AF_INET, socket.SOCK_STREAM), ("127.0.0.1", int(sys.argv[1])))
attempt((socket.AF_UNIX, socket.SOCK_STREAM), chr(0) + sys.argv[2])
try: socket.socket(socket.AF_INET, socket.SOCK_RAW, 1); print("raw")
except OSError: pass
"""
PRIVILEGES = """
import ctypes, os
libc = ctypes.CDLL(None)
def attempt(name, call):
    try: done = call()
    except OSError: done = -1
    if done != -1: print(name)
attempt("setuid", lambda: os.setuid(0) or 0)
attempt("setgroups", lambda: os.setgroups([0]) or 0)
attempt("mknod", lambda: os.mknod("/work/d", 0o60600, os.makedev(254, 0)) or 0)
attempt("mount", lambda: libc.mount(b"x", b"/work", b"tmpfs", 0, b""))
attempt("chroot", lambda: os.chroot("/work") or 0)
attempt("hostname", lambda: libc.sethostname(b"x", 1))
"""
TRACE_PROCESS_ONE = """
import ctypes, os
print(ctypes.CDLL(None).ptrace(16, 1, 0, 0))
for number in (9, 15, 19):
    try: os.kill(1, number); print("sent")
    except PermissionError: pass
"""
#: By their numbers on x86-64: bpf, init_module, kexec_load, iopl, swapon, settimeofday,
#: userfaultfd, perf_event_open, add_key, reboot.
KERNEL_CALLS = """
import ctypes
libc = ctypes.CDLL(None)
for number in (321, 175, 246, 172, 167, 164, 323, 298, 248, 169):
    if libc.syscall(number, 0, 0, 0, 0, 0) >= 0: print(number)
"""
SIGNAL_EVERYBODY = """
import os
seen = []
for pid in range(2, 33000):
    if pid == os.getpid(): continue
    try: os.kill(pid, 0); seen.append(pid)
    except ProcessLookupError: pass
    except PermissionError: seen.append(pid)
print(max(seen, default=0) < 100)
"""
CPU_HOG = "import os\nfor _ in range(7):\n if os.fork() == 0: break\nwhile True: pass"
OPEN_FILES = """
import os
held = []
try:
    while True: held.append(os.open("/work", os.O_RDONLY))
except OSError as error: print(len(held), error.errno)
"""
HUGE_OUTPUT = "import os\nwhile True: os.write(1, b'x' * 65536)"
STUBBORN = """
import os, signal, time
for number in (1, 2, 3, 15): signal.signal(number, signal.SIG_IGN)
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0: time.sleep(1000)
    os._exit(0)
time.sleep(1000)
"""
LINKS_OUT = """
import os
for number, target in enumerate(("/etc/shadow", "/", "../../../..", "/proc/self/root")):
    os.symlink(target, f"/work/link{number}")
os.mkfifo("/work/pipe")
"""
#: As archives do: names that lead upwards, absolute ones, and far more than fits.
TAR_BOMB = """
import io, tarfile
made = io.BytesIO()
with tarfile.open(fileobj=made, mode="w") as archive:
    for name in ("../../etc/up", "/etc/absolute", "zeros"):
        member = tarfile.TarInfo(name)
        member.size = 8 << 20
        archive.addfile(member, io.BytesIO(bytes(member.size)))
made.seek(0)
for member in tarfile.open(fileobj=made):
    try: tarfile.open(fileobj=io.BytesIO(made.getvalue())).extract(member, "/work")
    except OSError: pass
"""
ALL = {
    "fork bomb": (FORK_BOMB,),
    "memory": (MEMORY_BOMB,),
    "disk": (DISK_FILL,),
    "secrets": (READ_SECRETS,),
    "network": (NETWORK, "9", "nobody"),
    "links": (LINKS_OUT,),
    "archives": (TAR_BOMB,),
    "privileges": (PRIVILEGES,),
    "tracing": (TRACE_PROCESS_ONE,),
    "kernel": (KERNEL_CALLS,),
    "signals": (SIGNAL_EVERYBODY,),
    "CPU": (CPU_HOG,),
    "open files": (OPEN_FILES,),
    "output": (HUGE_OUTPUT,),
    "stubborn": (STUBBORN,),
}
