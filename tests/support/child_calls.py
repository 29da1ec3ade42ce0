"""Calls for children: importable by name, so that a spawned child finds them too."""

import os
import signal
import time


def double(number):
    return 2 * number


def die(number):
    if number == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    return number


def hang(number):
    if number == 1:
        time.sleep(60)
    return number


def group_of(number):
    return os.getpid(), os.getpgrp()
