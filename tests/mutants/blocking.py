"""The blocking client: what an interrupted, forked or late call would lose, or wait for."""

from __future__ import annotations

from typing import Final

from tests.mutants import Mutant

_BLOCKING: Final = "tests/unit/blocking/test_blocking.py::"
_LATE: Final = _BLOCKING + "test_a_call_that_is_submitted_as_another_thread_closes_the_client_ends"
_BEHIND: Final = _BLOCKING + "test_a_call_behind_an_interrupted_one_waits_until_that_has_ended"
_MADE: Final = _BLOCKING + "test_what_an_interrupted_call_has_made_ends"

MUTANTS = [
    Mutant(
        "an interrupted call of a thread goes on",
        "Ctrl-C leaves work behind",
        "        finally:\n            future.cancel()\n",
        "        finally:\n            pass\n",
        (_BLOCKING + "test_ctrl_c_cancels_the_call_and_loses_no_element",),
    ),
    Mutant(
        "an interrupted connect leaves its thread",
        "Ctrl-C leaves a thread and a session behind",
        "            loop.close()\n            raise\n",
        "            raise\n",
        (_BLOCKING + "test_ctrl_c_while_it_connects_leaves_no_thread",),
    ),
    Mutant(
        "the end of the interpreter does not end blocking clients",
        "a late call waits for a thread that is gone, for ever",
        "@atexit.register\ndef _close_all",
        "def _close_all",
        (_BLOCKING + "test_the_end_of_the_interpreter_ends_it_and_refuses_later_calls",),
    ),
    Mutant(
        "a call that the client's end interrupts raises what no caller catches",
        "the outcome of an append is not said",
        "        except (CancelledError, WrongEventLoopError):\n",
        "        except WrongEventLoopError:\n",
        (_BLOCKING + "test_a_call_that_the_end_of_the_client_interrupts_says_so",),
    ),
    Mutant(
        "a blocking client that is dropped keeps its thread",
        "each forgotten client costs a thread and a session",
        "            self._loop.submit(_dropped(self.client, self._loop))\n",
        "            pass\n",
        (_BLOCKING + "test_a_client_that_nobody_has_any_more_ends_its_thread",),
    ),
    Mutant(
        "the end of the loop leaves the futures of calls that it has dropped",
        "a thread waits for ever for an append that began as another one closed the client",
        "        self._loop_ended = True\n        self._fail_unfinished()\n",
        "        self._loop_ended = True\n",
        (_LATE,),
    ),
    Mutant(
        "a call that is submitted behind the end of the loop has nobody to fail it",
        "a thread waits for ever for an append that began as another one closed the client",
        "        if self._loop_ended:  # too late for the thread that has ended it\n",
        "        if False:\n",
        (_LATE,),
    ),
    Mutant(
        "a call that its loop drops leaves its coroutine",
        "a warning about a coroutine that was never awaited",
        "_Call(run), loop)",
        "run(), loop)",
        (_LATE,),
    ),
    Mutant(
        "two threads close the blocking client at once",
        "one of them gets an error, and the session stays with its leases until its time-out",
        "        with self._closing:  # else",
        "        with threading.RLock():  # else",
        (_BLOCKING + "test_two_threads_that_close_it_at_once_wait_for_one_end",),
    ),
    Mutant(
        "a future's append takes its buffer when the loop begins it",
        "an entry has what the caller wrote into the buffer behind the call",
        "self._begin(self._of.append_nowait, payload_of(data), entry_id",
        "self._begin(self._of.append_nowait, data, entry_id",
        (_BLOCKING + "test_an_entry_is_what_its_buffer_had_at_the_call",),
    ),
    Mutant(
        "what an interrupted poll has fetched is dropped",
        "entries are lost by Ctrl-C",
        "                put_back(self._of, self._fetched.popleft())\n",
        "                self._fetched.popleft()\n",
        (_BLOCKING + "test_what_a_poll_has_fetched_as_ctrl_c_comes_is_for_the_next_one",),
    ),
    Mutant(
        "a seek leaves what an interrupted poll has fetched",
        "the next poll begins elsewhere",
        "            self._of.seek(position)\n            self._fetched.clear()\n",
        "            self._of.seek(position)\n",
        (_BLOCKING + "test_what_a_poll_has_fetched_as_ctrl_c_comes_is_for_the_next_one",),
    ),
    Mutant(
        "a poll behind an interrupted one does not wait for its end",
        "the call behind Ctrl-C fails, as if another task polled",
        "        async with self._fetching:\n            if self._fetched:  # and nobody",
        "        if True:\n            if self._fetched:  # and nobody",
        (_BEHIND + "[True]",),
    ),
    Mutant(
        "an iterator's next behind an interrupted one does not wait for its end",
        "the call behind Ctrl-C fails, as if another task read on",
        "        async with self._fetching:\n            if self._fetched:  # by the",
        "        if True:\n            if self._fetched:  # by the",
        (_BEHIND + "[False]",),
    ),
    Mutant(
        "what an interrupted call has made stays",
        "a log is locked, and a consumer leased, by an object that nobody has",
        "                self._begin(leave)\n",
        "                pass\n",
        (_MADE + "[False]",),
    ),
    Mutant(
        "what a call makes that has not noticed its cancellation stays",
        "a log is locked, and a consumer leased, by an object that nobody has",
        "            if left:  # it did not notice",
        "            if False:  # it did not notice",
        (_MADE + "[True]",),
    ),
]
