"""A traceback leads to the last line that is the user's own, and says where below it the error was raised."""

from __future__ import annotations

import pytest

from holdfast.telemetry.report.own_frame import folded, own_frame

HEAD = "Traceback (most recent call last):\n"
OWN = '  File "/home/u/train.py", line 33, in step\n    loss = model(batch["x"])\n'
LIBRARY = '  File "/env/lib/python3.11/site-packages/torch/nn/functional.py", line 2264, in linear\n    return F(a)\n'
FROZEN = '  File "<frozen runpy>", line 88, in _run_code\n'
SHOWN = ['File "/home/u/train.py", line 33, in step', '  loss = model(batch["x"])']


@pytest.mark.parametrize("frames", [OWN, FROZEN + OWN, LIBRARY + OWN])
def test_the_line_that_raised_is_the_users(frames: str) -> None:
    assert own_frame(f"{HEAD}{frames}KeyError: 'x'\n") == SHOWN


def test_a_librarys_line_is_named_below_the_users_that_called_it() -> None:
    below = "raised below it, in torch/nn/functional.py:2264, in linear"
    assert own_frame(f"{HEAD}{OWN}{LIBRARY}RuntimeError: shapes\n") == [*SHOWN, below]


def test_where_all_lines_are_a_librarys_the_last_one_is_shown() -> None:
    assert own_frame(f"{HEAD}{FROZEN}{LIBRARY}RuntimeError: shapes\n")[0].startswith('File "/env/lib/python3.11/site-packages/')


def test_of_an_error_in_the_handling_of_another_the_last_counts() -> None:
    first = HEAD + '  File "/home/u/data.py", line 1, in load\n    open(path)\nOSError: no\n'
    between = "\nDuring handling of the above exception, another exception occurred:\n\n"
    assert own_frame(f"{first}{between}{HEAD}{OWN}KeyError") == SHOWN


def test_of_an_exception_group_the_line_that_raised_one_of_its_errors_is_shown() -> None:
    def margin(text: str, bar: str) -> str:
        return "".join(f"{bar}{line}\n" for line in text.splitlines())

    group = margin(f"{LIBRARY}ExceptionGroup: unhandled errors in a TaskGroup (1 sub-exception)", "  | ")
    inner = margin(f"{HEAD}{OWN}KeyError: 'x'", "    | ")
    assert own_frame(f"  + Exception Group {HEAD}{group}  +-+---- 1 ----\n{inner}    +----\n") == SHOWN


def test_a_syntax_error_has_its_file_and_line() -> None:
    text = '  File "/home/u/train.py", line 7\n    print("never"\n         ^\nSyntaxError: \'(\' was never closed\n'
    assert own_frame(text) == ['File "/home/u/train.py", line 7', '  print("never"']


@pytest.mark.parametrize("text", ["", "Traceback", "Error: it broke", "goroutine 1 [running]:"])
def test_a_text_without_frames_has_none(text: str) -> None:
    assert own_frame(text) == []


def test_a_long_one_is_shown_without_its_middle() -> None:
    lines = folded("\n".join([HEAD.rstrip(), *["  again()"] * 1000, "RecursionError: too deep"]))
    assert "957 lines left out" in lines[15] and lines[-1] == "RecursionError: too deep" and len(lines) == 46
