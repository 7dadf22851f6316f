"""Process 1 of a sandbox: starts commands, carries their streams, kills and reaps them.

It runs inside, as root, from its source text alone: it imports only what is built into Python 3.6
and later, and takes its orders on standard input. Commands run as another user without any
capability; each carries a supplementary group of its own (its mark), which no child can shed, so
that a command is killed with all that it ever started, whatever sessions that made.

Frames, both ways: kind (1 byte), number of the command (u32), length (u32), payload.
    to the guest    x start   i input    c end of input   k kill   s write all back   p answer
    from the guest  r ready   o output   e error output   t wrote more than it may
                    q ended   f not started (errno)       d done
"""

import _signal as signal  # `signal` itself imports enum: a third of the start-up time
import os
import select
import struct

HEAD = struct.Struct("<cII")
CHUNK_BYTES = 1 << 16
MAX_KILL_ROUNDS = 500


class Launcher:
    """A child that waits for its order, so that a command costs no fork when it is asked for."""

    def __init__(self):
        pipes = [os.pipe() for _ in range(5)]
        (order, self.order), (stdin, self.stdin) = pipes[:2]
        (self.stdout, stdout), (self.stderr, stderr), (self.failure, failure) = pipes[2:]
        self.pid = os.fork()
        if self.pid == 0:
            try:
                become_command(order, stdin, stdout, stderr, failure)
            finally:
                os._exit(127)
        for descriptor in (order, stdin, stdout, stderr, failure):
            os.close(descriptor)
        for descriptor in (self.stdin, self.stdout, self.stderr):
            os.set_blocking(descriptor, False)

    def launch(self, order):
        """Hand over the order: NUL between user, group, mark, folder, number of words, words."""
        view = memoryview(struct.pack("<I", len(order)) + order)
        while view:
            view = view[os.write(self.order, view) :]
        os.close(self.order)


def become_command(order, stdin, stdout, stderr, failure):
    """In the child: take one order and become its program; errno into `failure` where it fails."""
    os.setsid()
    for target, descriptor in enumerate((stdin, stdout, stderr)):
        os.dup2(descriptor, target)
    for name in os.listdir("/proc/self/fd"):
        if int(name) > 2 and int(name) not in (order, failure):
            close_if_open(int(name))
    size = os.read(order, 4)
    if len(size) < 4:
        os._exit(0)
    (length,) = struct.unpack("<I", size)
    text = b""
    while len(text) < length:
        text += os.read(order, length - len(text))
    try:
        execute(text.split(b"\0"))
    except OSError as error:
        os.write(failure, b"%d" % (error.errno or 0))


def execute(fields):
    user, group, mark, folder, num_words = fields[:5]
    words = fields[5 : 5 + int(num_words)]
    environment = dict(entry.split(b"=", 1) for entry in fields[5 + int(num_words) :])
    os.setgroups([int(mark)])
    os.setresgid(int(group), int(group), int(group))
    os.setresuid(int(user), int(user), int(user))
    os.chdir(folder)
    for number in (signal.SIGPIPE, signal.SIGINT, signal.SIGXFSZ):
        signal.signal(number, signal.SIG_DFL)
    os.umask(0o022)
    become(words, environment)


def become(words, environment):
    """Execute a program that PATH leads to; os.execvpe would import a module first, each time."""
    if b"/" in words[0]:
        os.execve(words[0], words, environment)
    refused = FileNotFoundError(2, "no such program")
    for place in environment.get(b"PATH", b"/usr/bin:/bin").split(b":"):
        try:
            os.execve(place + b"/" + words[0], words, environment)
        except (FileNotFoundError, NotADirectoryError):
            continue
        except PermissionError as error:
            refused = error
    raise refused


class Command:
    """One command that runs, on the pipes of the launcher that became it."""

    def __init__(self, number, mark, allowed_bytes, launcher):
        self.number = number
        self.mark = mark
        self.allowed_bytes = allowed_bytes
        self.pid = launcher.pid
        self.stdin = launcher.stdin
        self.stdout = launcher.stdout
        self.stderr = launcher.stderr
        self.failure = launcher.failure
        self.waiting = bytearray()
        self.input_ends = False


class Guest:
    """The loop over orders, pipes and ended children."""

    def __init__(self, orders, answers):
        self.orders = orders
        self.answers = answers
        self.commands = {}
        self.readers = {}
        self.writers = {}
        self.poll = select.poll()
        self.received = bytearray()
        self.launcher = None

    def run(self):
        child_ended, wake = os.pipe()
        os.set_blocking(child_ended, False)
        os.set_blocking(wake, False)
        signal.set_wakeup_fd(wake, warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        self.poll.register(self.orders, select.POLLIN)
        self.poll.register(child_ended, select.POLLIN)
        self.launcher = Launcher()
        self.send(b"r", 0)
        while True:
            events = dict(self.poll.poll())
            # Orders and ended children open and close pipes: they come after the pipes' events.
            orders, ended = events.pop(self.orders, 0), events.pop(child_ended, 0)
            for descriptor, event in events.items():
                self.handle(descriptor, event)
            if ended:
                os.read(child_ended, CHUNK_BYTES)
                self.reap()
            if orders:
                self.take_orders()

    def handle(self, descriptor, event):
        if descriptor in self.readers:
            self.read(descriptor)
        elif descriptor in self.writers:
            self.write(descriptor, event)

    def send(self, kind, number, payload=b""):
        view = memoryview(HEAD.pack(kind, number, len(payload)) + payload)
        while view:
            view = view[os.write(self.answers, view) :]

    def take_orders(self):
        data = os.read(self.orders, CHUNK_BYTES)
        if not data:
            os._exit(0)  # the agent is gone: the sandbox ends with its process 1
        self.received += data
        while len(self.received) >= HEAD.size:
            kind, number, length = HEAD.unpack_from(self.received)
            if len(self.received) < HEAD.size + length:
                return
            payload = bytes(self.received[HEAD.size : HEAD.size + length])
            del self.received[: HEAD.size + length]
            self.obey(kind, number, payload)

    def obey(self, kind, number, payload):
        command = self.commands.get(number)
        if kind == b"x":
            self.start(number, *payload.split(b"\0", 1))
        elif kind in (b"s", b"p"):
            if kind == b"s":
                os.sync()
            self.send(b"d", number)
        elif command is None:
            return  # it ended while the order was on its way
        elif kind == b"k":
            kill_marked(command.mark)
        elif kind == b"i":
            command.waiting += payload
            self.want_to_write(command)
        elif kind == b"c":
            command.input_ends = True
            self.want_to_write(command)

    def start(self, number, allowed_bytes, order):
        launcher, mark = self.launcher or Launcher(), int(order.split(b"\0", 3)[2])
        self.launcher = None  # the next one is forked when this command no longer needs the CPU
        launcher.launch(order)
        command = self.commands[number] = Command(number, mark, int(allowed_bytes), launcher)
        for descriptor, kind in ((command.stdout, b"o"), (command.stderr, b"e")):
            self.readers[descriptor] = (command, kind)
            self.poll.register(descriptor, select.POLLIN)

    def read(self, descriptor):
        """Pass on what a command wrote; whether there may be more."""
        command, kind = self.readers[descriptor]
        try:
            data = os.read(descriptor, CHUNK_BYTES)
        except BlockingIOError:
            return False
        if not data:
            self.forget(descriptor)
            return False
        allowed = data[: command.allowed_bytes]
        command.allowed_bytes -= len(allowed)
        if allowed:
            self.send(kind, command.number, allowed)
        if len(allowed) < len(data):
            self.send(b"t", command.number)
            kill_marked(command.mark)
            self.forget(descriptor)
            return False
        return True

    def forget(self, descriptor):
        del self.readers[descriptor]
        self.poll.unregister(descriptor)
        os.close(descriptor)

    def want_to_write(self, command):
        if command.stdin is not None and command.stdin not in self.writers:
            self.writers[command.stdin] = command
            self.poll.register(command.stdin, select.POLLOUT)

    def write(self, descriptor, event):
        command, broken = self.writers[descriptor], event & (select.POLLERR | select.POLLHUP)
        try:
            if command.waiting and not broken:
                del command.waiting[: os.write(descriptor, command.waiting[:CHUNK_BYTES])]
        except BlockingIOError:
            return
        except BrokenPipeError:
            broken = True
        if broken or not command.waiting:
            del self.writers[descriptor]
            self.poll.unregister(descriptor)
            if broken or command.input_ends:
                os.close(descriptor)
                command.stdin = None

    def reap(self):
        by_pid = {command.pid: command for command in self.commands.values()}
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return
            if pid == 0:
                return
            if pid in by_pid:
                self.end(by_pid[pid], status)
                self.launcher = self.launcher or Launcher()

    def end(self, command, status):
        """Say how a command ended, after what it had written; its background may live on."""
        for descriptor in (command.stdout, command.stderr):
            while descriptor in self.readers and self.read(descriptor):
                pass
            if descriptor in self.readers:
                self.forget(descriptor)
        if command.stdin is not None:
            if self.writers.pop(command.stdin, None):
                self.poll.unregister(command.stdin)
            os.close(command.stdin)
        failure = os.read(command.failure, 16)
        os.close(command.failure)
        del self.commands[command.number]
        self.send(b"f" if failure else b"q", command.number, failure or struct.pack("<i", status))


def kill_marked(mark):
    """Kill whatever carries a mark until nothing does."""
    for _ in range(MAX_KILL_ROUNDS):
        marked = [pid for pid in map(int, filter(str.isdigit, os.listdir("/proc"))) if
                  is_marked(pid, b"%d" % mark)]  # fmt: skip
        if not marked:
            return
        for pid in marked:
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                continue


def is_marked(pid, mark):
    """Whether a process that still runs has the mark among its groups."""
    try:
        status = os.open(f"/proc/{pid}/status", os.O_RDONLY)
    except OSError:
        return False
    try:
        lines = os.read(status, 4096).split(b"\n")
    except OSError:
        return False
    finally:
        os.close(status)
    fields = dict(line.split(b":", 1) for line in lines if b":" in line)
    is_over = fields.get(b"State", b" X").split()[0] in (b"Z", b"X")
    return mark in fields.get(b"Groups", b"").split() and not is_over


def close_if_open(descriptor):
    try:
        os.close(descriptor)
    except OSError:
        return


def take_over_standard_streams():
    """Orders and answers move to other descriptors, so that nothing else can write among them."""
    orders, answers = os.dup(0), os.dup(1)
    nothing = os.open("/dev/null", os.O_RDWR)
    for descriptor in (0, 1, 2):
        os.dup2(nothing, descriptor)
    os.close(nothing)
    return orders, answers


if __name__ == "__main__":
    Guest(*take_over_standard_streams()).run()
