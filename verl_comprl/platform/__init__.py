"""What the package needs of the machine and of Ray.

verl on a CPU, waits with limits, the watchdog's rules, priorities, patches of foreign libraries.
"""
