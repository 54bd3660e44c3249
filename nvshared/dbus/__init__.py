# SPDX-License-Identifier: Apache-2.0
"""D-Bus for both sides: where a bus is, what a message is, and its bytes.

No asyncio and no foreign library: `nvsharectl status` should be over before it is noticed.

https://dbus.freedesktop.org/doc/dbus-specification.html
"""
