# SPDX-License-Identifier: Apache-2.0
"""The library in /etc/ld.so.preload: in every program of the machine, or safely out again.

A wrong line there can keep every program from starting, the ones that would
repair it included. So, before anything is written: nobody but root may be able to
change the library (switch.py), and programs that have it preloaded must run
(trial.py). Then the list is replaced as a whole (listing.py). Taking the line
out asks for none of this.

Everything works on the system below any folder as well (tree.py), such as an
image that is being made.
"""
