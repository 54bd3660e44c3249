# SPDX-License-Identifier: Apache-2.0
"""What stands in for PyTorch in a program under the library.

PyTorch itself does not run on a simulated card. This is a caching allocator in Python over the
driver's functions, under the names that nvshare_caches uses. It follows PRELUDE of programs.py.
"""

from tests.integration.fakehook import PATIENCE

STAND_IN = '''
import importlib.util, threading, time, types
importlib.util.find_spec("torch")       # as `import torch` does; torch need not be installed
class Caching:
    "Blocks that are freed are kept, for the next that want just as much."
    def __init__(self):
        self.sizes, self.kept, self.lock = {}, [], threading.Lock()
        self.looked = self.emptied = 0
    def take(self, size, value=None):
        with self.lock:
            for address in self.kept:
                if self.sizes[address] == size:
                    self.kept.remove(address)
                    break
            else:
                memory = c_uint64()
                call("cuMemAlloc_v2", byref(memory), size)
                address = memory.value
                self.sizes[address] = size
        if value is not None:
            call("cuMemsetD8_v2", address, value, size)
        return address
    def give(self, address):
        self.kept.append(address)
    def figures(self, device):
        assert device == 0
        self.looked += 1
        held = sum(self.sizes.values())
        return {"reserved_bytes.all.current": held,
                "active_bytes.all.current": held - sum(map(self.sizes.get, self.kept)),
                "inactive_split_bytes.all.current": 0}
    def empty(self):
        with self.lock:
            while self.kept:
                address = self.kept.pop()
                call("cuMemFree_v2", address)
                del self.sizes[address]
            self.emptied += 1
    def use(self, device):
        call("cuCtxSetCurrent", context)
    def counts(self):
        return [self.looked, self.emptied]
caching = Caching()
def module(name, **content):
    sys.modules[name] = types.ModuleType(name)
    vars(sys.modules[name]).update(content)
torch_cuda = types.SimpleNamespace(
    is_initialized=lambda: True, set_device=caching.use, empty_cache=lambda: caching.empty(),
    memory_stats=lambda device: caching.figures(device))
module("torch", cuda=torch_cuda)
def report():
    "When the test says so, and the counts are what it expects, and stay so."
    expected = json.loads(sys.stdin.readline())
    until = time.monotonic() + PATIENCE
    while caching.counts() != expected and time.monotonic() < until:
        time.sleep(0.001)
    time.sleep(0.02)
    say(caching.counts())
kept, cached = caching.take(100 * MIB, 3), caching.take(400 * MIB)
caching.give(cached)
'''.replace("PATIENCE", str(PATIENCE // 4))
READY = '''
say("ready")
'''


STEPS = '''
stream = new_stream()
c_library = ctypes.PyDLL(None)          # keeps Python's lock during calls
def wait():
    "For the test; no other thread of Python's runs meanwhile."
    sys.setswitchinterval(3600)         # between the two calls no other thread gets the lock
    c_library.write(1, b"0\\n", 2)
    c_library.read(0, ctypes.create_string_buffer(1), 1)
    sys.setswitchinterval(.005)
def begin():
    call("cuStreamBeginCapture_v2", stream, 0)
def end():
    graph = c_void_p()
    call("cuStreamEndCapture", stream, byref(graph))
    call("cuGraphDestroy", graph)
'''
