# __init__.py - what is measured: one file for each kind of program.
# SPDX-License-Identifier: Apache-2.0
