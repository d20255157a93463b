"""A program that does nothing for a minute."""

import time

time.sleep(60)
