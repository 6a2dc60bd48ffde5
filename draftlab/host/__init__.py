"""What a machine has: asked in one round trip by a POSIX shell script, told apart from guesses.

In:   host names, or this machine.  Out: one `HostFacts` document each.

`questions/` holds the pairs: what the script asks (`NAME.sh`) and what its answer means (`NAME.py`,
pure). `script` puts the script together, `ssh` is the only file that starts a process, `probe` asks
many hosts at once.
"""
