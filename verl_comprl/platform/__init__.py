"""Support by the machine and by Ray.

verl on a CPU, waits with limits, the watchdog's rules, priorities, patches of foreign libraries.
"""
