# SPDX-License-Identifier: Apache-2.0
"""Moves of the model hook: EVICT, LOAD, WRITEBACK, STORE and preallocation, block by block.

Each function is called again when the move of a block has ended.
"""

from typing import TYPE_CHECKING

from nvshared.scheduler.actions import Evict, Load, Writeback
from nvshared.scheduler.events import Evicted, Loaded, Stored, WrittenBack
from tests.unit.scheduler_arena import Block, Location, Slab

if TYPE_CHECKING:
    from tests.unit.scheduler_hookmodel import Hook


def lent(hook: "Hook", order: Evict | Writeback) -> int:
    """The bytes that an order lets the hook hold on the lender, which is one card at a time."""
    if hook.borrowed and order.lender != hook.lender:
        return 0
    hook.lender = order.lender
    return order.loan if hook.sees is None or order.lender in hook.sees else 0


def evict(hook: "Hook", order: Evict, moved: int = 0, no_host: bool = False,
          failed: bool = False) -> None:
    """Evicts the youngest blocks first; a written-back block is evicted without a copy."""
    block = next((b for b in reversed(hook.blocks) if b.location is Location.RESIDENT), None)
    movable = not (hook.granted or hook.stopping or hook.pin_reason or no_host or failed)
    more = movable and block is not None and hook.filled > order.room
    if more and block is not None and order.number not in hook.cut:
        if hook.fail_out:
            no_host, failed = hook.fail_out == "host", hook.fail_out == "driver"
            hook.fail_out = ""
        elif block.filed and not block.stale:
            hook.arena.give(block)
            hook.put(block, Location.STORED)
            evict(hook, order, moved)
            return
        elif not hook.arena.take(block, order.host, hook.world.slab):
            no_host = True
        else:
            file(hook, block, there=False)
            hook.put(block, block.location, moving=True)
            took = 1 if block.saved else max(1, block.size // hook.world.bus)
            total = moved + (0 if block.saved else block.size)
            hook.world.at(hook.world.now + took, lambda: _left(hook, block, order, total))
            return
    filled = hook.filled + (hook.pending if hook.granted else 0)
    hook.room = max(hook.room, min(hook.before, filled))
    hook.room_asked = False
    hook.borrowed = hook.dirty = min(lent(hook, order), hook.host)
    hook.say(Evicted(hook.id, hook.memory, order.number, moved, no_memory=no_host,
                     driver_error=failed, yielded=more and order.number in hook.cut))
    hook.done()


def _left(hook: "Hook", block: Block, order: Evict, moved: int) -> None:
    hook.put(block, Location.SWAPPED)
    if block.doomed:
        hook.forget(block)
    evict(hook, order, moved)


def file(hook: "Hook", block: Block, *, there: bool) -> None:
    """Note whether the disk file has a copy of the block."""
    hook.disk += block.size * (there - block.filed)
    block.filed, block.stale = there, False


def give_up_copies(hook: "Hook") -> None:
    """Free stored copies of resident blocks until the file has its permitted size."""
    for block in hook.blocks:
        if hook.disk > hook.disk_limit and block.location is Location.RESIDENT and not block.moving:
            file(hook, block, there=False)


def store(hook: "Hook") -> None:
    """Write one swapped block after the other to the disk, except during a LOAD."""
    block = next((b for b in hook.blocks if b.location is Location.SWAPPED and not b.moving), None)
    loads = isinstance(hook.doing, Load)
    if hook.dead or hook.storing or loads or block is None:
        return
    if hook.disk + block.size > hook.disk_limit:
        return
    hook.storing = True
    hook.put(block, Location.SWAPPED, moving=True)
    took = max(1, 4 * block.size // hook.world.bus)
    hook.world.at(hook.world.now + took, lambda: _stored(hook, block))


def _stored(hook: "Hook", block: Block) -> None:
    hook.storing = False
    failed, hook.store_fails = hook.store_fails, False
    full = hook.disk + block.size > hook.disk_limit     # a STORE lowered the limit
    if failed or full:
        hook.put(block, Location.SWAPPED)
    else:
        hook.put(block, Location.STORED)
        file(hook, block, there=True)
        hook.arena.give(block)
        hook.arena.trim(0)
    if block.doomed:
        hook.forget(block)
    if failed:
        hook.say(Stored(hook.id, hook.memory, hook.store, failed=True))
        hook.disk_limit = 0
    hook.changed()
    if hook.resume is not None:         # a LOAD waits for this block
        resume, hook.resume = hook.resume, None
        resume()
    store(hook)


def write_back(hook: "Hook", order: Writeback, no_host: bool = False, failed: bool = False) -> None:
    """Copy resident blocks to the host one by one, in the order of eviction."""
    resident = [b for b in reversed(hook.blocks) if b.location is Location.RESIDENT]
    ready = sum(b.size for b in resident if b.saved)
    block = next((b for b in resident if not b.saved), None)
    more = block is not None and ready < order.size and not (no_host or failed)
    if more and block is not None and order.number not in hook.cut:
        if hook.fail_out:
            no_host, failed = hook.fail_out == "host", hook.fail_out == "driver"
            hook.fail_out = ""
        elif not hook.arena.take(block, order.host, hook.world.slab):
            no_host = True
        else:
            hook.put(block, Location.RESIDENT, moving=True)
            took = max(1, block.size // hook.world.bus)
            hook.world.at(hook.world.now + took, lambda: _copied(hook, block, order))
            return
    hook.borrowed = min(max(hook.borrowed, lent(hook, order)), hook.host)
    hook.dirty = hook.borrowed if order.number in hook.cut else 0
    hook.say(WrittenBack(hook.id, hook.memory, order.number, ready, no_memory=no_host,
                         driver_error=failed, yielded=more and order.number in hook.cut))
    hook.done()


def _copied(hook: "Hook", block: Block, order: Writeback) -> None:
    hook.put(block, Location.RESIDENT)
    block.saved = True
    if block.doomed:
        hook.forget(block)
    write_back(hook, order)


def make(hook: "Hook") -> None:
    """Preallocate one slab after the other. Each counts as host memory from the start."""
    size = min(hook.world.slab, min(hook.prealloc_limit, hook.allocated) - hook.host)
    if hook.dead or hook.preallocating or size <= 0:
        return
    hook.preallocating = True
    hook.arena.held += size
    took = max(1, 4 * size // hook.world.bus)
    hook.world.at(hook.world.now + took, lambda: _made(hook, size))


def _made(hook: "Hook", size: int) -> None:
    hook.preallocating = False
    hook.arena.slabs.append(Slab(size))
    hook.changed()
    make(hook)


def load(hook: "Hook", order: Load, moved: int = 0, no_memory: bool = False,
         failed: bool = False) -> None:
    away = [b for b in hook.blocks if b.location is not Location.RESIDENT]
    block = next((b for b in away if not b.moving), None)
    if block is None and any(b.moving and b.location is Location.SWAPPED for b in hook.blocks):
        hook.resume = lambda: load(hook, order, moved)
        return                          # load it when the write to the disk has ended
    more = block is not None and not no_memory and not failed and hook.mappable(block)
    if more and block is not None and order.number not in hook.cut:
        if hook.fail_in:
            failed, hook.fail_in = True, ""
        elif hook.world.device_free() < block.size:
            no_memory = True
        else:
            empty = block.location is Location.EMPTY
            hook.put(block, Location.RESIDENT, moving=True)
            took = 1 if empty else max(1, block.size // hook.world.bus)
            total = moved + block.size
            hook.world.at(hook.world.now + took, lambda: _arrived(hook, block, order, total))
            return
    hook.arena.settle(hook.blocks, order.host)
    hook.room_asked = False
    hook.borrowed = min(hook.borrowed, hook.host)
    hook.say(Loaded(hook.id, hook.memory, order.number, moved, no_memory=no_memory,
                    driver_error=failed, yielded=more and order.number in hook.cut))
    hook.done()


def _arrived(hook: "Hook", block: Block, order: Load, moved: int) -> None:
    hook.put(block, Location.RESIDENT)
    if block.doomed:
        hook.forget(block)
    hook.arena.settle(hook.blocks, order.host)
    load(hook, order, moved)
