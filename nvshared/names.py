# SPDX-License-Identifier: Apache-2.0
"""Public names: on the bus, in the environment, in the file system."""

import pwd

BUS_NAME = "com.nvshare"

MANAGER_PATH = "/com/nvshare"
GPU_PATH = "/com/nvshare/gpu"
CLIENT_PATH = "/com/nvshare/client"
LOG_CONTROL_PATH = "/org/freedesktop/LogControl1"

MANAGER_INTERFACE = "com.nvshare.Manager"
GPU_INTERFACE = "com.nvshare.GPU"
STATISTICS_INTERFACE = "com.nvshare.GPU.Statistics"
CLIENT_INTERFACE = "com.nvshare.Client"
LOG_CONTROL_INTERFACE = "org.freedesktop.LogControl1"

# The forms of a tenant's name, for hints of error messages.
TENANT_KINDS = "user:NAME, unit:NAME, container:NAME, job:ID or pod:NAMESPACE/NAME"
# Sources of terms of tenants besides nvsharectl: SLURM's plugin for jobs ("job"); for pods an
# annotation, a claim, or the PriorityClass.
TERM_SOURCES = ("annotation", "claim", "class", "job")
PRIORITIES = {"background": 1, "normal": 2, "high": 3}
# Policies of nvshared/scheduler/policy.py, each with words for users.
POLICIES = {
    "fair": "the program whose tenant has used least of its share goes first",
    "fifo": "first come, first served, regardless of weights and requests",
    "deadline": "programs with a deadline go first, the earliest first, the rest as with fair",
}

MODES = ("auto", "on", "off")
AUTO = "auto"                           # a quantum that nvshared adapts to the cost of hand-overs
UNKNOWN = (1 << 64) - 1                 # value of an unknown figure of D-Bus type t
COMM_LONGEST = 15                       # bytes of a process's name that the kernel keeps
DRIVER_VERSION = "/proc/driver/nvidia/version"      # exists once NVIDIA's module is loaded

# Actions of polkit; dbus/com.nvshare.policy has their default authorizations.
ACTION_SET_TQ = "com.nvshare.set-tq"
ACTION_SET_ANTI_THRASH = "com.nvshare.set-anti-thrash"
ACTION_SET_POLICY = "com.nvshare.set-policy"
ACTION_MANAGE_CLIENTS = "com.nvshare.manage-clients"
ACTION_NAME_PODS = "com.nvshare.name-pods"
ACTION_FORGET_GPU = "com.nvshare.forget-gpu"
ACTION_RELOAD = "com.nvshare.reload"
ACTION_VIEW_HISTORY = "com.nvshare.view-history"
ACTION_SET_LOG_LEVEL = "com.nvshare.set-log-level"

SOCKET_VARIABLE = "NVSHARE_SOCKET"
BUS_VARIABLE = "NVSHARE_BUS"
DEBUG_VARIABLE = "NVSHARE_DEBUG"
DEFAULT_SOCKET = "/run/nvshare/nvshare.sock"
TRIAL_FOLDER = "/run/nvshare-trial"      # state of the simulated GPUs of nvsharectl trial
KUBELET_STATE = "/var/lib/nvshare-kubelet"
WITHOUT_GPU = "without-gpu.json"        # in KUBELET_STATE: static pods without requested GPUs


def user(uid: int) -> str:
    """The name of a user, or the number of a user without a name. May block."""
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return str(uid)


def gpu_path(index: int) -> str:
    return f"{GPU_PATH}/{index}"


def client_path(number: int) -> str:
    return f"{CLIENT_PATH}/{number}"
