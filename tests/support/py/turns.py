"""Many tries of a soak test at once, each turn in a process of its own: what a try leaves is found among its children."""

import multiprocessing
import queue

import launches


def run_turn(work, turn, n_turns, results):
    launches.adopt_orphans()
    for result in work(turn, n_turns):
        results.put(result)
    results.put(None)


def results_of(work, n_turns):
    """All results of work(turn, n_turns), a generator of results other than None, in the order of their coming."""
    context, n_running = multiprocessing.get_context("fork"), n_turns
    results = context.Queue()
    turns = [context.Process(target=run_turn, args=(work, turn, n_turns, results)) for turn in range(n_turns)]
    for process in turns:
        process.start()
    while n_running > 0:
        try:
            result = results.get(timeout=1)
        except queue.Empty:
            assert not any(process.exitcode for process in turns), "a process of this test has failed"
            continue
        n_running -= result is None
        if result is not None:
            yield result
    for process in turns:
        process.join()
