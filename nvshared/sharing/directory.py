# SPDX-License-Identifier: Apache-2.0
"""The last answers of the database of users. The event loop only reads them; threads ask.

Users are numbers everywhere in the daemon. Names are questions to the database: the number that a
rule means, and the name to show for a number. An answer is kept while the database has none, as an
unreachable directory answers that it knows no user."""

from collections import Counter
from collections.abc import Callable, Collection, Hashable, Iterable
from dataclasses import dataclass, field
from functools import partial
from typing import Any, NamedTuple

from nvshared.clock import Clock, Timer, monotonic
from nvshared.lanes import Run, here
from nvshared.machine import users
from nvshared.signal import Signal
from nvshared.units import SECOND

PATIENCE = SECOND                       # us that a program or call waits for an answer
AGAIN = 2 * SECOND                      # us until a question without an answer is asked again: at
AGAIN_MOST = 60 * SECOND                # first, and at most; the time doubles
FRESH = 300 * SECOND                    # us until an answer is asked for again
MOST = 4096                             # questions remembered, besides those that matter
OF_A_CALLER = 16                        # most questions of one user of the bus that are under way


class Question(NamedTuple):
    kind: str                           # "name", "number", "group", "groups": see machine/users.py
    key: Any                            # a user's number, or the name of a user or group


@dataclass(slots=True)
class _Entry:
    asked: int                          # time of the last question
    pause: int = AGAIN                  # us from a question without an answer to the next
    answer: Any = None                  # the last answer; None: there has been none
    failed: bool = False                # the last question got no answer
    pending: bool = False
    done: bool = False                  # the database has replied at least once
    waiting: list[Callable[[], None]] = field(default_factory=list)


class Directory:
    def __init__(self, run: Run = here, clock: Clock = monotonic,
                 timer: Timer = lambda _when, _callback: lambda: None) -> None:
        """`run`: Lanes.run, of lanes in which nothing else waits."""
        self._run, self._clock, self._timer = run, clock, timer
        self._entries: dict[Question, _Entry] = {}
        self._names: dict[int, set[str]] = {}       # by number: names with it as the last answer
        self._most = MOST               # at so many entries, those that do not matter are forgotten
        self._of_caller: Counter[Hashable] = Counter()      # questions under way
        self._due = 0                   # time of the timer that is set
        self._disarm: Callable[[], None] | None = None      # None: no timer is set
        # The questions to be asked again and again.
        self._in_use: Callable[[], Collection[Question]] = tuple
        self.changed: Signal[Question] = Signal("changed")      # its answer is another

    def use(self, questions: Callable[[], Collection[Question]]) -> None:
        """Sets the function that returns the questions to be asked again."""
        self._in_use = questions

    def name(self, uid: int) -> str | None:
        """The name to show for a user; None: none is known."""
        found: str | None = self.last(Question("name", uid))
        return found

    def number(self, name: str) -> int | None:
        """The number of the user with this name; None: none is known."""
        entry = self._entries.get(Question("number", name))
        if entry is None or entry.answer is None:
            return None
        # If the user is no longer known, the number may have gone to another one.
        if entry.failed and self.last(Question("name", entry.answer)) not in (None, name):
            return None
        found: int = entry.answer
        return found

    def names(self, uid: int) -> set[str]:
        """The names with this number()."""
        return {name for name in self._names.get(uid, ()) if self.number(name) == uid}

    def expect(self, name: str, uid: int) -> None:
        """Takes a user's name and number from an earlier daemon, until the database replies."""
        for question, answer in (Question("number", name), uid), (Question("name", uid), name):
            entry = self._entries[question] = _Entry(self._clock() - FRESH, done=True)
            self._set_answer(question, entry, answer)

    def last(self, question: Question) -> Any:
        """The last answer, without a question; None: there is none."""
        entry = self._entries.get(question)
        return None if entry is None else entry.answer

    def has_replied(self, question: Question) -> bool:
        entry = self._entries.get(question)
        return entry is not None and entry.done

    def ask(self, question: Question, caller: Hashable = None) -> None:
        """Asks in a thread, unless the answer is recent. Must be called in the event loop.

        `caller`: the user of the bus that made the question up; has one question at a time."""
        now, entry = self._clock(), self._entries.get(question)
        if entry is not None and (entry.pending or now < entry.asked + (
                entry.pause if entry.failed else FRESH)):
            return
        if caller is not None and self._of_caller[caller] >= OF_A_CALLER:
            return
        if entry is None:
            if len(self._entries) >= self._most:
                self._forget()
            entry = self._entries[question] = _Entry(now)
        entry.asked, entry.pending = now, True
        self._of_caller[caller] += 1
        lane = question if caller is None else ("caller", caller)
        self._run(lane, partial(_reply, question), partial(self._replied, question, caller))
        self._arm(now + AGAIN)

    def wait(self, questions: Iterable[Question], then: Callable[[], None],
             caller: Hashable = None) -> None:
        """Asks the unanswered questions; calls `then` once all are answered, or after PATIENCE.

        Calls `then` at once if all are answered, or were asked before and are late."""
        missing = 0

        def one_less() -> None:
            nonlocal missing
            missing -= 1
            if missing == 0:
                disarm()
                then()

        def over() -> None:
            nonlocal missing
            if missing > 0:
                missing = -1
                then()

        late = self._clock() - PATIENCE
        for question in questions:
            self.ask(question, caller)
            entry = self._entries.get(question)
            if entry is not None and not entry.done and entry.asked > late:
                missing += 1
                entry.waiting.append(one_less)
        if not missing:
            then()
            return
        disarm = self._timer(self._clock() + PATIENCE, over)

    def later(self, then: Callable[[], None]) -> None:
        """Calls `then` in a second, for what one call is enough for many answers."""
        self._timer(self._clock() + SECOND, then)

    def refresh(self) -> None:
        """Asks all that is in use again, if it has no answer."""
        for question in self._in_use():
            if (entry := self._entries.get(question)) is not None and entry.failed:
                entry.pause = AGAIN
                entry.asked = min(entry.asked, self._clock() - AGAIN)
            self.ask(question)

    def _replied(self, question: Question, caller: Hashable, answer: tuple[Any] | None) -> None:
        self._of_caller -= Counter([caller])    # Counter's -= removes counts of zero
        entry = self._entries[question]
        entry.pending = False
        found = None if answer is None else answer[0]
        waiting, entry.waiting = entry.waiting, []
        self._take(question, found)
        if question.kind == "name" and found is not None:
            self._take(Question("number", found), question.key)     # has been compared, too
        for then in waiting:
            then()

    def _take(self, question: Question, found: Any) -> None:
        entry = self._entries.setdefault(question, _Entry(self._clock()))
        is_number = question.kind == "number"
        before = self.number(question.key) if is_number else None
        first, entry.done = not entry.done, True
        entry.failed = found is None
        entry.pause = min(AGAIN_MOST, 2 * entry.pause) if found is None else AGAIN
        is_new = found is not None and found != entry.answer
        if is_new:
            self._set_answer(question, entry, found)
        # A number may have gone to another user before its name was found to be no longer known.
        if is_new or first or (is_number and self.number(question.key) != before):
            self.changed.emit(question)

    def _set_answer(self, question: Question, entry: _Entry, answer: Any) -> None:
        if question.kind == "number":
            self._names.get(entry.answer, set()).discard(question.key)
            self._names.setdefault(answer, set()).add(question.key)
        entry.answer = answer

    def _arm(self, due: int) -> None:
        """Sets the timer for the next question that is in use."""
        if self._disarm is None or due < self._due:
            if self._disarm is not None:
                self._disarm()
            self._due, self._disarm = due, self._timer(due, self._ask_again)

    def _ask_again(self) -> None:
        self._disarm = None
        in_use = [*self._in_use()]
        for question in in_use:
            self.ask(question)
        entries = [self._entries[one] for one in in_use if one in self._entries]
        if entries:
            due = min(one.asked + (one.pause if one.failed else FRESH) for one in entries)
            self._arm(max(due, self._clock() + AGAIN))

    def _forget(self) -> None:
        """Forgets the questions that do not matter now, such as names that callers made up."""
        used = {*self._in_use()}
        self._entries = {question: entry for question, entry in self._entries.items()
                         if question in used or entry.pending}
        self._most = MOST + len(self._entries)
        self._names = {}
        for question, entry in self._entries.items():
            if question.kind == "number" and entry.answer is not None:
                self._names.setdefault(entry.answer, set()).add(question.key)


def _reply(question: Question) -> tuple[Any]:
    return (getattr(users, question.kind)(question.key),)
